"""`eagle-export --reproduce`: what it refuses before any work, and what it finds afterwards."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import asdict, replace

from eagle_aot.artifact import Device, FileRecord, Manifest, TargetIdentity, file_record
from eagle_aot.artifact.manifest import installed_versions
from eagle_aot.common.errors import CheckpointError
from eagle_aot.export import ExportSpec, resolve
from eagle_aot.export import reproduce as module
from eagle_aot.export.cli import main
from eagle_aot.export.loading.provenance import identity
from eagle_aot.export.reproduce import (
    check_checkpoints,
    compare_artifacts,
    differences,
    read_recorded,
    recorded_spec,
)
from eagle_aot.export.resolution import ResolvedExport
from eagle_aot.targets import TARGETS
from support.files.artifact import write_artifact
from support.hub import HubRepository, files_of, hub_server, use_hub
from support.refusals import refuses

TINY = TARGETS["gemma4-tiny"]
SPEC = ExportSpec(
    target_model="gemma4-tiny", backend="xnnpack", drafter="eagle3", chain_len=4, max_seq_len=64
)


def again(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["--reproduce", *map(str, arguments)])


@pytest.fixture
def pair(tmp_path: Path) -> ResolvedExport:
    """The shipped pair, in directories to change."""
    assert TINY.target_dir is not None and TINY.draft_dir is not None
    target_dir = shutil.copytree(TINY.target_dir, tmp_path / "target")
    draft_dir = shutil.copytree(TINY.draft_dir, tmp_path / "head")
    return resolve(replace(SPEC, target_dir=Path(target_dir), draft_dir=Path(draft_dir)))


@pytest.fixture
def recorded(pair: ResolvedExport, tmp_path: Path) -> Manifest:
    """What an export of the pair would record, in `artifact`."""
    assert pair.spec.target_dir is not None
    (tmp_path / "artifact").mkdir()
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
             "generation_config.json")  # fmt: skip
    write_artifact(
        tmp_path / "artifact",
        eagle_aot_version="0.0.1",
        versions=installed_versions() | {"torch": "2.0.0"},
        target=TargetIdentity(name="gemma4-tiny", **asdict(identity(pair.spec.target_dir))),
        draft=identity(pair.spec.draft_dir),
        options=pair.recorded("eagle3", 4, 64),
        files={name: file_record(pair.spec.target_dir / name) for name in names},
    )
    return read_recorded(tmp_path / "artifact")


def test_recorded_options_are_read_back(recorded: Manifest, pair: ResolvedExport) -> None:
    spec = recorded_spec(recorded, Path("manifest.json"))
    directories = {"target_dir": None, "draft_dir": None}
    assert spec == replace(pair.spec, **directories, max_prefill=512)
    taps = replace(recorded, options=recorded.options | {"tap_layers": [1, 2, 3]})
    assert recorded_spec(taps, Path("m")).tap_layers == (1, 2, 3)
    alone = replace(recorded, options=recorded.options | {"drafter": "ngram"})
    assert recorded_spec(alone, Path("m")).drafter == "ngram"


def test_an_option_that_is_newer_than_the_export_has_its_default(recorded: Manifest) -> None:
    older = {name: value for name, value in recorded.options.items() if name != "kv_cache_dtype"}
    assert len(older) == len(recorded.options) - 1
    assert recorded_spec(replace(recorded, options=older), Path("m")).kv_cache_dtype == "auto"


@pytest.mark.parametrize(("options", "message"), [
    ({"max_seq_len": 10**12}, "recorded options: --max-seq-len 1000000000000: must be"),
    ({"max_seq_len": "all"}, "got `str` - at `$.max_seq_len`"),
    ({"backend": "--output-dir=/etc"}, "recorded options: Invalid enum value"),
    ({"tap_layers": [3, 2]}, "expected distinct, ascending boundaries"),
    ({"chain_len": 99}, "recorded options: --chain-len 99: must be"),
    ({"target_model": "gpt-5"}, "known targets"),
    ({"output_dir": "/etc"}, "its options are not those of this version's exports"),
    ({"help": True}, "its options are not those of this version's exports"),
])  # fmt: skip
def test_options_that_no_user_could_give_are_refused(
    recorded: Manifest, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    replace(recorded, options=recorded.options | options).write(tmp_path / "artifact")
    refuses(again(tmp_path / "artifact", "--output-dir", tmp_path / "out"), message)
    assert not (tmp_path / "out").exists()


def test_same_checkpoints_in_other_directories_are_accepted(
    recorded: Manifest, pair: ResolvedExport
) -> None:
    check_checkpoints(recorded, pair.checkpoints)
    check_checkpoints(recorded, resolve(SPEC).checkpoints)


@pytest.mark.parametrize(("name", "flag"), [
    ("target/model.safetensors", "--target-dir"),
    ("target/config.json", "--target-dir"),
    ("target/tokenizer.json", "--target-dir"),
    ("target/generation_config.json", "--target-dir"),
    ("head/model.safetensors", "--draft-dir"),
    ("head/config.json", "--draft-dir"),
])  # fmt: skip
def test_a_checkpoint_that_changed_is_refused_by_file_name(
    recorded: Manifest, pair: ResolvedExport, tmp_path: Path, name: str, flag: str
) -> None:
    content = bytearray((tmp_path / name).read_bytes())
    if name.endswith(".safetensors"):
        content[-1] ^= 1
    else:
        content += b" \n"
    (tmp_path / name).write_bytes(content)
    file = Path(name).name
    message = f"^{flag} .*: not the recorded checkpoint: {file} is different: name the directory"
    with pytest.raises(CheckpointError, match=message):
        check_checkpoints(recorded, pair.checkpoints)


def test_files_more_or_less_are_a_change(
    recorded: Manifest, pair: ResolvedExport, tmp_path: Path
) -> None:
    (tmp_path / "target" / "generation_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"generation_config\.json is missing"):
        check_checkpoints(recorded, pair.checkpoints)
    (tmp_path / "head" / "quantize_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"quantize_config\.json is new"):
        check_checkpoints(recorded, resolve(pair.spec).checkpoints)


@pytest.mark.parametrize("files", [None, [], {"config.json": "0"}, {"config.json": {"bytes": 1}}])
def test_damaged_records_are_stated(recorded: Manifest, tmp_path: Path, files: Any) -> None:
    stored = recorded.to_json()
    stored["target"]["files"] = files
    (tmp_path / "artifact" / "manifest.json").write_text(json.dumps(stored))
    refuses(again(tmp_path / "artifact", "--output-dir", tmp_path / "out"), "`$.target.files")


def test_the_original_is_never_replaced(recorded: Manifest, tmp_path: Path) -> None:
    before = sorted((tmp_path / "artifact").iterdir())
    for path in ("artifact", "artifact/manifest.json"):
        result = again(tmp_path / path, "--output-dir", tmp_path / "artifact")
        refuses(result, "artifact: holds what is reproduced: name another")
    assert sorted((tmp_path / "artifact").iterdir()) == before


def test_file_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    refuses(again(tmp_path / "none"), "--reproduce")
    refuses(again(tmp_path), "not an artifact")
    (tmp_path / "m.json").write_text("{")
    refuses(again(tmp_path / "m.json"), "damaged")


def test_options_in_addition_to_recorded_ones_are_wrong_usage(
    recorded: Manifest, tmp_path: Path
) -> None:
    result = again(tmp_path / "artifact", "--chain-len", "3")
    assert result.exit_code == 2 and "leave out --chain-len" in result.output


def test_differences_are_listed_by_name(recorded: Manifest) -> None:
    made = replace(
        recorded,
        eagle_aot_version="9",
        device=Device(name="a GPU", compute_capability="9.0", multiprocessors=132, cuda="13.0"),
        decisions={"taps": {"value": (1, 2)}, "dtype": "float32"},
        files=recorded.files | {"model.pte": FileRecord(0, "0" * 64)},
    )
    decided = replace(recorded, decisions={"taps": {"value": [1, 3]}, "dtype": "float32"})
    found = compare_artifacts(decided, made)
    assert not found.identical
    assert found.files == dict.fromkeys(sorted(recorded.files), "same") | {"model.pte": "new"}
    assert found.decisions == {"decisions.taps.value": ([1, 3], [1, 2])}
    assert found.environment["torch"] == ("2.0.0", installed_versions()["torch"])
    device = {"name": "a GPU", "compute_capability": "9.0", "multiprocessors": 132, "cuda": "13.0"}
    assert found.environment["device"] == (None, device)
    assert compare_artifacts(made, made).files["model.pte"] == "same"


@pytest.mark.parametrize(("one", "other", "expected"), [
    ({}, {}, {}),
    ({"a": 1}, {}, {"a": (1, None)}),
    ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a.c": (2, 3)}),
    ({"a": {"b": 1}}, {"a": None}, {"a": ({"b": 1}, None)}),
])  # fmt: skip
def test_differences_have_dotted_names(one: Any, other: Any, expected: Any) -> None:
    assert differences(one, other) == expected


def test_recorded_commits_of_repositories_are_used_again(
    recorded: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(tmp_path / "target"), files_of(tmp_path / "head")
    repositories = dict(zip(("org/tiny", "org/head"), map(HubRepository, files), strict=True))
    with hub_server(repositories) as hub:
        use_hub(hub, tmp_path, monkeypatch)
        spec = ExportSpec(**asdict(SPEC) | {"target_model": "org/tiny", "draft_model": "org/head"})
        pair = resolve(spec)
        provenance = pair.checkpoints.provenance
        commit = hub.repositories["org/tiny"].branches["main"]
        target = TargetIdentity(name="gemma4_text", **asdict(provenance.target))
        assert (target.directory, target.commit) == ("org/tiny", commit)
        of_hub = replace(recorded, target=target, draft=provenance.draft,
                         options=pair.recorded("eagle3", 4, 64))  # fmt: skip
        of_hub.write(tmp_path / "artifact")
        assert Manifest.read(tmp_path / "artifact") == of_hub
        for repository in hub.repositories.values():
            repository.commit("main", {"config.json": b"{}"})
        shutil.rmtree(tmp_path / "hub")
        exported: list[ResolvedExport] = []

        def export(resolved: ResolvedExport) -> Manifest:
            exported.append(resolved)
            return of_hub

        monkeypatch.setattr(module, "export", export)
        result = again(tmp_path / "artifact", "--output-dir", tmp_path / "out", "--json")
        assert result.exit_code == 0, result.output
        (found,) = exported
        assert (found.spec.target_dir, found.spec.draft_dir) == (
            pair.spec.target_dir, pair.spec.draft_dir
        )  # fmt: skip


@pytest.mark.parametrize(("field", "flag"), [("target", "--target-dir"), ("draft", "--draft-dir")])
def test_directories_that_only_the_user_knows_are_requested(
    recorded: Manifest, tmp_path: Path, field: str, flag: str
) -> None:
    options = recorded.options | {"target_model": "gemma4-31b"}
    replace(recorded, options=options).write(tmp_path / "artifact")
    requested = ("--target-dir", tmp_path / "target") if field == "draft" else ()
    name = "head" if field == "draft" else "target"
    result = again(tmp_path / "artifact", *requested, "--output-dir", tmp_path / "out")
    refuses(result, f"{flag} is needed: the recorded checkpoint is {name}")


def test_different_versions_are_printed_before_the_work(
    recorded: Manifest, pair: ResolvedExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`export` is replaced: it takes minutes, which end_to_end/test_alone.py spends."""
    exported: list[ResolvedExport] = []

    def export(resolved: ResolvedExport) -> Manifest:
        exported.append(resolved)
        return recorded

    monkeypatch.setattr(module, "export", export)
    directories = ("--target-dir", tmp_path / "target", "--draft-dir", tmp_path / "head")
    out = tmp_path / "out"
    result = again(tmp_path / "artifact", *directories, "--output-dir", out, "--json")
    assert result.exit_code == 0, result.output
    assert exported == [resolve(replace(pair.spec, output_dir=out, max_prefill=512))]
    here = installed_versions()["torch"]
    assert f"recorded 2.0.0, here {here}" in result.stderr
    found = json.loads(result.stdout)
    assert found["identical"] and found["output_dir"] == str(out)
    assert found["environment"]["torch"] == ["2.0.0", here]
