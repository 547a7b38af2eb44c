"""From names to directories: registered targets, repositories, paths, heads and revisions."""

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from huggingface_hub import constants
from msgspec.structs import replace

from eagle_aot.artifact import DRAFTERS
from eagle_aot.common.errors import (
    CheckpointNotFoundError,
    EagleError,
    HubError,
    SettingError,
    UnsupportedError,
)
from eagle_aot.common.hub import Repository
from eagle_aot.export import ExportSpec, pipeline, resolve_checkpoints
from eagle_aot.export.cli import main
from eagle_aot.export.inspect_cli import main as inspect
from eagle_aot.export.loading import locate
from eagle_aot.export.loading.locate import local_checkpoint
from eagle_aot.targets import TARGETS
from eagle_aot.targets.hub import PUBLIC_PAIRS, checkpoint_files
from support.hub import Hub, HubRepository, files_of, hub_server, use_hub
from support.refusals import refuses

LISTINGS: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[2] / "data" / "hub" / "listings.json").read_text()
)
TINY = TARGETS["gemma4-tiny"]
assert TINY.target_dir and TINY.draft_dir
TARGET, HEAD = files_of(TINY.target_dir), files_of(TINY.draft_dir)
JUNK = {"pytorch_model.bin": b"old", "model.gguf": b"other", "LICENSE": b"free"}
EAGLE3 = PUBLIC_PAIRS["gemma4-31b"].heads["eagle3"]
DFLASH = PUBLIC_PAIRS["gemma4-31b"].heads["dflash"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The shipped pair under the names of the 31B's, and under names of their own."""
    heads = dict.fromkeys((EAGLE3, DFLASH, "org/head"), HEAD)
    targets = dict.fromkeys((PUBLIC_PAIRS["gemma4-31b"].target, "org/Tiny"), TARGET | JUNK)
    files = {**heads, **targets, "org/ggufs": {"a-Q4_0.gguf": b"", "a-Q8_0.gguf": b""}}
    repositories = {name: HubRepository(content) for name, content in files.items()}
    with hub_server(repositories) as server:
        use_hub(server, tmp_path, monkeypatch)
        monkeypatch.chdir(tmp_path)
        yield server


def resolved(target_model: str, **options: Any) -> ExportSpec:
    return resolve_checkpoints(ExportSpec(target_model=target_model, **options)).spec


def named(path: Path | None) -> str | None:
    """Return the repository of a directory in the cache."""
    found = None if path is None else Repository.of_path(path)
    return None if found is None else found.id


@pytest.mark.parametrize(("drafter", "head"), [
    ("auto", None), ("mtp", None), ("dflash2", "z-lab/Qwen3.8-27B-DFlash2"),
    ("dspark", "RedHatAI/Qwen3.8-27B-speculator.dspark"),
])  # fmt: skip
def test_the_layer_of_a_targets_own_checkpoint_comes_before_published_heads(
    drafter: str, head: str | None
) -> None:
    found = locate._published_head(TARGETS["qwen3.8-27b"], drafter)
    assert found == (None if head is None else Repository(head))
    with pytest.raises(SettingError, match=r"--drafter eagle3: no .* mtp, dflash2, dspark"):
        locate._published_head(TARGETS["qwen3.8-27b"], "eagle3")


@pytest.mark.parametrize("name", [n for n in TARGETS if TARGETS[n].repository in LISTINGS])
def test_public_pairs_resolve_against_the_files_of_their_repositories(name: str) -> None:
    line = TARGETS[name]
    assert line.repository is not None
    assert set(line.heads) <= set(DRAFTERS)
    for repository in (line.repository, *line.heads.values()):
        names = [file for file in LISTINGS[repository] if "/" not in file]
        files = checkpoint_files(names, Repository(repository))
        weights = [file for file in files if file.endswith((".safetensors", ".bin"))]
        assert len({Path(file).suffix for file in weights}) == 1, "one format"
        assert "config.json" in files and set(files) <= set(names)
        assert not {file for file in files if file.endswith((".py", ".md", ".txt", ".yaml"))}
        assert "consolidated.safetensors" not in files
        if repository == line.repository:
            assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= {*files}
    published = line.heads or line.draft_dir or line.has_mtp
    assert bool(published) != line.summary.endswith("no public head: ngram will draft")


def test_registered_names_and_table_agree() -> None:
    assert set(PUBLIC_PAIRS) <= set(TARGETS)
    used = {name for line in TARGETS.values() for name in (line.repository, *line.heads.values())}
    assert set(LISTINGS) - {"source"} <= used
    pairs = [(pair.target, *pair.heads.values()) for pair in PUBLIC_PAIRS.values()]
    assert {name for names in pairs for name in names} <= set(LISTINGS)


SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(("names", "file", "expected"), [
    (["config.json", "model.safetensors", *JUNK], None, ["config.json", "model.safetensors"]),
    ([*SHARDS, INDEX, "consolidated.safetensors", "config.json"], None,
     ["config.json", INDEX, *SHARDS]),
    (["config.json", "a.safetensors", INDEX], None, ["config.json", INDEX, "a.safetensors"]),
    (["config.json", "pytorch_model.bin", "training_args.bin"], None,
     ["config.json", "pytorch_model.bin"]),
    (["pytorch_model-1-of-1.bin", "pytorch_model.bin.index.json"], None,
     ["pytorch_model.bin.index.json", "pytorch_model-1-of-1.bin"]),
    (["mmproj-a.gguf", "a.gguf", "README.md"], None, ["a.gguf"]),
    (["a-Q4_0.gguf", "a-Q8_0.gguf", "model.safetensors"], "q8_0", ["a-Q8_0.gguf"]),
    (["a.gguf", "a.gguf2.gguf"], "a.gguf", ["a.gguf"]),
    (["a.gguf", "b.gguf"], None, "2 GGUF files: name one, org/x:a.gguf"),
    (["a-Q4_0.gguf", "a-Q4_1.gguf"], "Q4", "2 of its GGUF files have 'Q4' in the name: name one"),
    (["model.safetensors"], "Q4", "no GGUF file of it has 'Q4' in the name: name one of none"),
    (["README.md"], None, r"no \*\.safetensors, .*: it has README.md"),
])  # fmt: skip
def test_only_files_that_are_read_are_chosen(
    names: list[str], file: str | None, expected: list[str] | str
) -> None:
    repository = Repository("org/x", None, file)
    if isinstance(expected, list):
        assert checkpoint_files(names, repository) == expected
        return
    with pytest.raises(CheckpointNotFoundError, match=expected):
        checkpoint_files(names, repository)


def test_registered_target_has_its_public_pair(hub: Hub) -> None:
    spec = resolved("gemma4-31b")
    assert spec.target_dir is not None and spec.draft_dir is not None
    assert (spec.target_model, spec.drafter) == ("gemma4-31b", "auto")
    assert {p.name for p in spec.target_dir.iterdir()} == set(TARGET), "no duplicate formats"
    assert (named(spec.target_dir), named(spec.draft_dir)) == (
        PUBLIC_PAIRS["gemma4-31b"].target, EAGLE3
    )  # fmt: skip
    hub.requests.clear()
    assert resolved("gemma4-31b") == spec
    by_repository = resolved(PUBLIC_PAIRS["gemma4-31b"].target)
    assert by_repository == replace(spec, output_dir=Path("gemma-4-31B-it-qat-w4a16-ct-auto"))
    assert not hub.requests


def test_drafters_of_a_registered_target_have_names(hub: Hub) -> None:
    assert named(resolved("gemma4-31b", drafter="dflash").draft_dir) == DFLASH
    assert named(resolved("gemma4-31b", draft_model="org/head").draft_dir) == "org/head"
    assert not resolved("gemma4-31b", drafter="ngram").has_head
    directory = resolved("gemma4-31b", drafter="dflash", target_dir=TINY.target_dir)
    assert named(directory.draft_dir) == DFLASH and directory.target_dir == TINY.target_dir
    assert resolved("gemma4-31b", target_dir=TINY.target_dir).draft_dir is None


def test_smollm2_comes_from_the_package_index_where_the_hub_does_not_have_it(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory := tmp_path / "eagle-aot" / "smollm2-135m").mkdir(parents=True)
    (directory / "config.json").write_bytes(TARGET["config.json"])
    (directory / "model.safetensors").touch()
    monkeypatch.setattr(locate, "get_smollm2", lambda directory: directory)
    assert resolved("smollm2-135m").target_dir == directory
    assert "comes from the package index instead" in capsys.readouterr().err
    with pytest.raises(HubError, match=r"HuggingFaceTB/.*: neither a path here nor a repo"):
        resolved("smollm2-135m", draft_model="org/no")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        resolved("smollm2-135m")


def test_repository_is_read_by_its_config(hub: Hub) -> None:
    spec = resolved("org/Tiny", draft_model="org/head@main", backend="xnnpack")
    assert (spec.target_model, spec.output_dir) == ("gemma4_text", Path("Tiny-xnnpack"))
    assert (named(spec.target_dir), named(spec.draft_dir)) == ("org/Tiny", "org/head")
    alone = resolved("org/Tiny")
    assert (alone.draft_dir, alone.drafter) == (None, "ngram")


def test_revision_is_a_branch_a_tag_or_a_commit(hub: Hub) -> None:
    changed = TARGET | {"generation_config.json": b"{}"}
    commit = hub.repositories["org/Tiny"].commit("v2", changed)
    for options in ({"revision": "v2"}, {"revision": commit}):
        spec = resolved("org/Tiny", **options)
        assert spec.target_dir is not None and spec.target_dir.name == commit
    assert resolved("org/Tiny@v2").target_dir == spec.target_dir


def test_paths_are_targets_and_heads(hub: Hub, tmp_path: Path) -> None:
    assert TINY.target_dir and TINY.draft_dir
    shutil.copytree(TINY.target_dir, tmp_path / "org" / "Tiny")
    spec = resolved("org/Tiny", draft_model=str(TINY.draft_dir), backend="xnnpack")
    assert (spec.target_dir, spec.draft_dir) == (Path("org/Tiny"), TINY.draft_dir)
    assert (spec.target_model, spec.output_dir) == ("gemma4_text", Path("Tiny-xnnpack"))
    assert not hub.requests, "what is there is not looked up"


@pytest.mark.parametrize(("options", "line"), [
    ({"target_model": "gemma-31b"}, "unknown target 'gemma-31b'; did you mean gemma4-31b\\? known"),
    ({"target_model": "Qwen3-8B", "draft_model": "x"}, "did you mean qwen3-8b"),
    ({"target_model": "gemma4-31b", "drafter": "p-eagle"},
     r"--drafter p-eagle: no public head .* gemma4-31b \(known: eagle3, dflash, dflash2, dspark,"),
    ({"target_model": "gemma4-31b", "draft_model": "head"},
     "--draft-model head: neither a directory nor a repository, ORG/NAME"),
    ({"target_model": "gemma4-31b", "draft_model": "a/b", "draft_dir": Path("x")},
     "--draft-model and --draft-dir name one head each"),
    ({"target_model": "org/Tiny@v1", "revision": "v2"}, "--revision v2: goes with"),
    ({"target_model": "gemma4-tiny", "revision": "v2"}, "--revision v2: goes with"),
    ({"target_model": "gemma4-tiny", "load_format": "dummy", "draft_model": "a/b"},
     "--load-format dummy: a head has random weights, too: leave out --draft-model"),
    ({"target_model": "org/Tiny", "draft_model": "org/none"}, "org/none: neither a path here nor"),
    ({"target_model": "org/ggufs"}, "2 GGUF files: name one, org/ggufs:a-Q4_0.gguf"),
])  # fmt: skip
def test_wrong_names_are_refused_before_any_download(
    hub: Hub, options: dict[str, Any], line: str
) -> None:
    with pytest.raises(EagleError, match=line):
        resolve_checkpoints(ExportSpec(**options))
    assert not [request for request in hub.requests if "/resolve/" in request]


def test_checkpoints_are_described_by_name(hub: Hub) -> None:
    assert named(local_checkpoint("org/Tiny")) == "org/Tiny"
    head = CliRunner().invoke(inspect, ["draft", "org/head", "--json"])
    assert json.loads(head.stdout)["drafter"] == "eagle3"
    published = CliRunner().invoke(inspect, ["draft", "gemma4-31b"])  # the tiny head stands for it
    assert published.exit_code == 1
    assert "hidden size is 5376, the head was made for 256" in published.stderr
    assert any(EAGLE3 in request for request in hub.requests)


@pytest.mark.parametrize("name", ["org/none", "gemma-31b", "org/ggufs"])
def test_command_refuses_a_name_in_one_line(hub: Hub, name: str) -> None:
    refuses(CliRunner().invoke(main, ["--target-model", name]), "")


def test_package_for_gguf_is_needed_before_the_download(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="gguf is not installed"):
        resolved("org/ggufs:q4_0")


@pytest.mark.parametrize("drafter", ["auto", "ngram"])
def test_check_of_a_registered_target_needs_no_weights(hub: Hub, drafter: Any) -> None:
    spec = resolved("gemma4-31b", check_only=True, drafter=drafter)
    assert spec.is_dummy and not hub.requests
    assert not resolved("gemma4-tiny", check_only=True).is_dummy
    with pytest.raises(SettingError, match="--target-dir is needed: qwen3"):
        resolved("qwen3", check_only=True)


def test_check_says_that_weights_are_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "check", lambda resolved: {})  # tracing takes a minute
    result = CliRunner().invoke(main, ["--target-model", "gemma4-31b", "--check-only"])
    *planned, last = result.stderr.splitlines()
    assert last == "gemma4-31b: its geometry is checked, with random weights"
    assert planned[0].startswith("gemma4-31b for cuda needs ")
