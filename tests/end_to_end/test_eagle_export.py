"""`eagle-export`: what it refuses, what it prints and writes."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from eagle_aot.artifact import DRAFT_IDS, TOKENIZER_FILES, Manifest, RowRange
from eagle_aot.export import ExportSpec, pipeline, resolve
from eagle_aot.export.cli import main
from eagle_aot.export.plan import plan_export
from eagle_aot.export.publish.output_dir import atomic_output_dir
from eagle_aot.export.resolution import ResolvedExport
from eagle_aot.runtime_runner import Runner
from support.hub import Hub, use_hub
from support.refusals import refuses

OPTIONS = {
    "--target-model", "--target-dir", "--draft-dir", "--drafter", "--output-dir", "--backend",
    "--chain-len", "--max-seq-len", "--max-prefill", "--max-batch-size", "--load-format",
    "--dummy-layers", "--quantize", "--draft-quant", "--inputs", "--image-tokens", "--table-quant",
    "--cpu-weights", "--check-only", "--tap-layers", "--jobs", "--reproduce", "--no-self-test",
    "--json", "--version", "--draft-model", "--revision", "--push-to", "--kv-cache-dtype",
}  # fmt: skip


def export(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_options_are_listed() -> None:
    named = {opt for param in main.params for opt in param.opts}
    assert named == OPTIONS


@pytest.mark.parametrize(("arguments", "message"), [
    (["--target-model", "gpt-5"], "known targets: gemma4-tiny, gemma4-31b"),
    (["--target-model", "qwen3"], "--target-dir is needed: qwen3"),
    (["--target-model", "auto"], "--target-dir is needed: auto"),
    (
        ["--target-model", "gemma4-26b-a4b", "--backend", "cuda"],
        "--backend cuda: gemma4-26b-a4b has dense experts, and the kernels there read INT4",
    ),
    (["--target-model", "gemma4-31b", "--target-dir", "/"], "Error: /config.json: no such file"),
    (["--target-model", "gemma4-tiny", "--target-dir", "/none"], "/none: no such checkpoint"),
    (["--target-model", "gemma4-tiny", "--draft-dir", "/none"], "/none: no such directory"),
    (["--target-model", "gemma4-tiny", "--max-prefill", "9"], "raise --max-prefill"),
    (
        [
            *("--target-model", "gemma4-tiny"),
            *("--cpu-weights", "int8"),
            *("--backend", "cuda"),
        ],
        "--cpu-weights int8: is for XNNPACK; leave it out for cuda",
    ),
    (
        ["--target-model", "gemma4-tiny", "--load-format", "dummy", "--draft-dir", "/"],
        "leave out --draft-model and --draft-dir",
    ),
])  # fmt: skip
def test_wrong_settings_are_refused_in_one_line(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    refuses(export(*arguments, "--output-dir", tmp_path / "out"), message)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_nothing_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "load_by_gpu", None)
    out = tmp_path / "out"
    result = export("--target-model", "gemma4-tiny", "--backend", "cuda", "--output-dir", out)
    refuses(result, "--backend cuda: kernels are compiled and tuned on the GPU they will run on")
    assert not out.exists()


@pytest.mark.parametrize("arguments", [
    [],
    ["--target-model"],
    ["--backend", "tpu"],
    ["--draft-quant", "int2"],
    ["--drafter", "telepathy"],
    ["--max-seq-len", "3"],
    ["--max-seq-len", "1000000000000"],
    ["--chain-len", "0"],
    ["--chain-len", "16"],
    ["--max-batch-size", "0"],
    ["--max-batch-size", "65"],
    ["--jobs", "0"],
    ["--target-model", "gemma4-tiny", "--json"],
    ["--unknown"],
])  # fmt: skip
def test_wrong_usage_exits_with_two(arguments: list[str]) -> None:
    assert export(*arguments).exit_code == 2


def test_check_only_traces_and_writes_nothing(
    random_pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target_dir, head_dir = random_pair
    pair = ("--target-dir", target_dir, "--draft-dir", head_dir)
    result = export("--target-model", "gemma4-31b", *pair, "--max-seq-len", "96", "--check-only")
    assert result.exit_code == 0, result.output
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == [
        "prefill",
        "target_verify",
        "draft_decode",
        "draft_prefill",
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_says_where_the_artifact_comes_from(tiny_artifact: Path) -> None:
    manifest = Manifest.read(tiny_artifact)
    manifest.verify(tiny_artifact)
    assert manifest.target.name == "gemma4-tiny"
    assert set(manifest.target.files) == {"config.json", "model.safetensors"}
    assert manifest.decisions["taps"]["value"] == [2, 4, 5]
    assert "names boundaries" in manifest.decisions["taps"]["source"]
    assert (manifest.backend, manifest.options["load_format"]) == ("xnnpack", "auto")
    assert manifest.shapes == {
        "prefill": RowRange(min_rows=65, max_rows=96),
        "target_verify": RowRange(min_rows=1, max_rows=64),
        "draft_decode": RowRange(min_rows=1, max_rows=96),
        "copy_rows": RowRange(min_rows=1, max_rows=96),
    }
    assert (manifest.drafter, manifest.methods) == ("eagle3", list(manifest.shapes))
    assert {name.partition(".")[0] for name in manifest.caches} == {"draft", "target"}
    assert all(name.endswith(("kv_cache.k", "kv_cache.v")) for name in manifest.caches)
    assert manifest.constants["get_eos_ids"] == [1, 4]
    assert manifest.decisions["kernels"] == {name: {} for name in manifest.shapes}
    assert set(manifest.decisions["attention"].values()) == {"stock"}
    assert manifest.decisions["head"]["draft_vocab_size"] == 512
    assert (manifest.options["draft_quant"], manifest.options["drafter"]) == ("none", "eagle3")


def test_a_target_that_config_json_names_is_called_by_its_family(qwen3_artifact: Path) -> None:
    manifest = Manifest.read(qwen3_artifact)
    assert manifest.target.name == "qwen3"


def test_repositories_are_downloaded_once_and_recorded(
    qwen3_artifact: Path,
    pair_hub: tuple[Hub, Path],
    qwen3_runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, home = pair_hub
    commits = {name: r.branches["main"] for name, r in hub.repositories.items()}
    manifest = Manifest.read(qwen3_artifact)
    assert {c.directory: c.commit for c in (manifest.target, manifest.draft)} == commits
    assert any("/resolve/" in request for request in hub.requests)
    hub.requests.clear()
    use_hub(hub, home, monkeypatch)
    spec = ExportSpec(target_model="org/qwen3", draft_model="org/head", backend="xnnpack")
    assert plan_export(spec) is not None
    again = resolve(spec).checkpoints
    assert not hub.requests
    assert (again.provenance.target.files, again.provenance.draft.files) == (
        manifest.target.files, manifest.draft.files
    )  # fmt: skip
    assert len(qwen3_runner.generate([1, 2, 3], 8).token_ids) == 8
    assert len(manifest.target.files["model.safetensors"].sha256) == 64
    constants = manifest.constants
    assert (constants["get_n_layers"], constants["get_sliding_window"]) == (3, 16)


def test_an_artifact_is_complete_and_nothing_else(tiny_artifact: Path) -> None:
    names = {path.name for path in tiny_artifact.iterdir()}
    assert {"model.pte", "manifest.json", "tokenizer.json", "chat_template.jinja"} <= names
    assert names <= {"model.pte", "model.ptd", "manifest.json", DRAFT_IDS, *TOKENIZER_FILES}
    assert [*tiny_artifact.parent.glob(f".{tiny_artifact.name}.*")] == []
    listed = json.loads((tiny_artifact / "manifest.json").read_text())["files"]
    assert set(listed) == names - {"manifest.json"}


def test_weights_are_stored_once_for_both_target_methods(tiny_artifact: Path) -> None:
    # 6.0 M target and 1.5 M head parameters in float32, of them 0.26 M of a tied table
    files = [tiny_artifact / name for name in ("model.pte", "model.ptd")]
    assert sum(path.stat().st_size for path in files) < 35e6


def test_sigterm_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def export_until_sigterm(resolved: ResolvedExport) -> None:
        with atomic_output_dir(resolved.output_dir) as partial:
            (partial / "model.pte").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(pipeline, "export", export_until_sigterm)
    refuses(export("--target-model", "gemma4-tiny", "--output-dir", tmp_path / "a"), "interrupted")
    assert not list(tmp_path.iterdir()) and signal.getsignal(signal.SIGTERM) == before
