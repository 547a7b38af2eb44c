"""The self-test in `eagle-inspect draft` and in an export."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from msgspec.structs import replace
from torch import nn

from eagle_aot.artifact import Manifest
from eagle_aot.common.errors import ExportError, PromptError, SettingError
from eagle_aot.common.progress import Progress
from eagle_aot.export import ExportSpec
from eagle_aot.export.inspect_cli import main
from eagle_aot.export.loading import provenance
from eagle_aot.export.pipeline import run_self_test
from eagle_aot.export.self_test import run as module
from eagle_aot.export.self_test.run import moved, pairing_record
from support.files.artifact import write_artifact
from support.heads.faulty import FAULTS, write_faulty_head
from support.pairs import dummy, head_of, load, target_of
from support.refusals import refuses

TINY_SPEC = ExportSpec(target_model="gemma4-tiny")
XNNPACK = ExportSpec(backend="xnnpack")
TINY = ["--target-model", "gemma4-tiny", "--backend", "xnnpack", "--self-test"]


def test_inspect_fails_with_a_warning(tmp_path: Path) -> None:
    head = write_faulty_head(FAULTS[0], tmp_path / "head")
    result = CliRunner().invoke(main, ["draft", str(head), *TINY, "--json"])
    assert result.exit_code == 1
    error = result.stderr.splitlines()[-1]  # stages that take long print lines before it
    assert error.startswith("Error: self-test: another reading") and "--tap-layers 2,4,5" in error
    assert json.loads(result.stdout)["verdict"] == "other reading"


@pytest.mark.slow
def test_an_export_only_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = write_faulty_head(FAULTS[0], tmp_path / "head")
    loaded = load(replace(TINY_SPEC, draft_dir=head), positions=128)
    found = pairing_record(loaded, XNNPACK, Progress())
    assert found is not None and found["verdict"] == "other reading"
    assert "WARNING: self-test: another reading" in capsys.readouterr().err
    assert target_of(loaded.pair).tap_layers == (1, 3, 4)
    assert pairing_record(loaded, replace(XNNPACK, no_self_test=True), Progress()) is None


def test_the_manifest_records_the_readings(tiny_artifact: Path, qwen3_artifact: Path) -> None:
    found = Manifest.read(tiny_artifact).self_test
    assert found and found["verdict"] == "fits" and len(found["readings"]) > 8
    assert found["readings"][0]["chosen"]
    assert Manifest.read(qwen3_artifact).self_test is None  # exported with --no-self-test


def test_random_weights_are_not_tested() -> None:
    verdict = run_self_test(dummy("gemma4-31b", backend="xnnpack"))
    assert (verdict.kind, verdict.is_warning) == ("unknown", False)
    assert "its weights are random" in verdict.to_json()["message"]


def test_a_large_target_is_tested_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(TINY_SPEC, positions=128)
    weights = module.count_weights(loaded.pair.target)
    assert 5e6 < weights < 6.3e6  # of 6.3 M parameters, norms and the like left out
    monkeypatch.setattr(module, "LARGE", weights - 1)
    found = pairing_record(loaded, XNNPACK, Progress())
    assert found and found["verdict"] == "unknown" and "--self-test" in found["message"]


@pytest.mark.parametrize(("lines", "message"), [
    ([{"token_ids": [5000]}], "prompt ids must lie in a vocabulary of 1024"),
    ([{"prompt": 3}], "expected {"),
    ([], "holds no prompts"),
])  # fmt: skip
def test_unfit_prompts_are_refused(lines: list[object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["draft", "gemma4-tiny", *TINY, "--self-test-prompts", str(path)]
    refuses(CliRunner().invoke(main, arguments), message)


def test_few_tokens_are_too_few_to_judge_by(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"token_ids": [2, 3, 4, 5]}) + "\n")
    spec = replace(TINY_SPEC, backend="xnnpack", max_seq_len=128, self_test_prompts=path)
    verdict = run_self_test(spec)
    assert verdict.kind == "unknown" and "too few to tell" in verdict.message


def test_a_context_with_room_for_few_tokens_gives_a_manifest_that_reads_back(
    tmp_path: Path,
) -> None:
    """One block of positions has no standard error: NaN is no JSON."""
    found = pairing_record(load(TINY_SPEC, positions=42), XNNPACK, Progress())
    assert found and found["verdict"] == "unknown" and "too few to tell" in found["message"]
    write_artifact(tmp_path, self_test=found)
    assert Manifest.read(tmp_path).self_test == found


@pytest.mark.slow
def test_a_head_that_overflows_drafts_by_chance() -> None:
    loaded = load(TINY_SPEC, positions=128)
    head_of(loaded.pair).get_parameter("norm.weight").data.fill_(float("inf"))
    found = pairing_record(loaded, XNNPACK, Progress())
    assert found and found["verdict"] == "chance"
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("ids", [[5000], []])
def test_an_export_goes_through_with_a_tokenizer_that_does_not_fit(
    ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(prompt: str) -> list[int]:
        if not ids:
            raise PromptError("the prompt is empty")
        return ids

    tokenizer = SimpleNamespace(encode=encode, special_tokens={})
    monkeypatch.setattr(provenance, "convert_tokenizer", lambda directory: tokenizer)
    found = pairing_record(load(TINY_SPEC, positions=128), XNNPACK, Progress())
    assert found and found["verdict"] == "unknown" and "its tokenizer gives" in found["message"]


def test_prompts_without_the_self_test_are_wrong_usage() -> None:
    arguments = ["draft", "gemma4-tiny", "--self-test-prompts", "x.jsonl"]
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_target_without_a_head_is_refused() -> None:
    with pytest.raises(SettingError, match="gemma4-tiny has none here: eagle-check --self-test"):
        run_self_test(replace(TINY_SPEC, drafter="ngram"))


def test_a_moved_model_gets_its_own_tensors_back() -> None:
    linears = nn.Linear(4, 4), nn.Linear(4, 4)
    linears[1].weight = nn.Parameter(linears[0].weight.detach())  # one memory, two parameters
    model = nn.Sequential(*linears)
    before = dict(model.named_parameters())
    with pytest.raises(KeyError), moved(model, torch.device("meta")):
        assert all(parameter.is_meta for parameter in model.parameters())
        raise KeyError
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_an_export_goes_through_when_memory_is_short(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = self_test_failing_with(error, monkeypatch)
    assert found and found["verdict"] == "unknown" and "out of memory" in found["message"]


def test_any_other_failure_names_no_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="self-test failed: no kernel: --no-self-test exports"):
        self_test_failing_with(RuntimeError("no kernel\nhere"), monkeypatch)


def self_test_failing_with(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any] | None:
    """What an export records, or raises, when the target cannot be run."""

    def fail(*inputs: object, **options: object) -> None:
        raise error

    loaded = load(TINY_SPEC, positions=128)
    monkeypatch.setattr(type(loaded.pair.target), "forward_logits_taps", fail)
    return pairing_record(loaded, XNNPACK, Progress())


def test_a_random_pair_of_another_family_does_not_match(qwen3_pair: tuple[Path, Path]) -> None:
    """With a window of 16, shorter than every prompt."""
    spec = ExportSpec(
        target_model="auto", target_dir=qwen3_pair[0], draft_dir=qwen3_pair[1],
        backend="xnnpack", max_seq_len=192,
    )  # fmt: skip
    verdict = run_self_test(spec)
    assert verdict.kind == "chance" and verdict.chosen
