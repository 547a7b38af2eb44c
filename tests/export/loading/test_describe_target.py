"""`eagle-inspect target`, and the line on what an export holds dense."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from eagle_aot.export import ExportSpec
from eagle_aot.export.inspect_cli import main
from eagle_aot.export.loading.describe_target import dense_line, report_stored
from eagle_aot.targets.family import TINY_DIR
from support.files.gguf import SIZE, write_bare_llama
from support.refusals import refuses


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bare_llama(tmp_path_factory.mktemp("bare") / "model.gguf")


def describe(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["target", str(path), *arguments])


def described(path: Path) -> dict[str, Any]:
    result = describe(path, "--json")
    assert result.exit_code == 0, result.output
    assert result.output.count("\n") == 1
    return json.loads(result.output)


def test_a_bare_file_is_described(bare: Path) -> None:
    found = described(bare)
    assert found == described(bare.parent) | {"directory": str(bare)}
    assert (found["model_type"], found["files"]) == ("llama", ["model.gguf"])
    assert found["sizes"] == {
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": SIZE,
    }
    assert found["context"] == 128
    assert found["linears"] == {"int4": 20, "int8": 0, "dense": 8}
    assert found["formats"][1] == {
        "what": "linear",
        "stored": "Q8_0",
        "held": "dense",
        "count": 8,
        "bytes": 8 * 64 * 96 * 34 // 32,
    }
    assert found["stop_ids"] == [1]
    tokenizer = found["tokenizer"], found["chat_template"], found["adds_bos"]
    assert tokenizer == ("loads", True, False)


def test_a_reader_gets_lines(bare: Path) -> None:
    lines = describe(bare).output.splitlines()
    facts = {line[:22].strip(): line[22:] for line in lines}
    assert facts["linears"] == "20 INT4, 0 INT8, 8 dense"
    assert "8 linears in Q8_0 (0.1 MB), held dense" in facts["formats"]
    assert "1 table in F16 (0.0 MB), held dense" in facts["formats"]
    assert (facts["context"], facts["stop ids"]) == ("128", "1")
    assert (facts["tokenizer"], facts["chat template"]) == ("loads", "yes")


def test_the_shipped_target_is_described() -> None:
    found = described(TINY_DIR / "target")
    assert found["linears"] == {"int4": 41, "int8": 0, "dense": 0}
    assert found["stop_ids"] == [1, 4] and found["adds_bos"] and found["chat_template"]


def test_a_file_without_a_tokenizer_says_so_and_all_else(tmp_path: Path) -> None:
    found = described(write_bare_llama(tmp_path / "model.gguf", tokenizer=False))
    assert "model.gguf: holds no tokenizer" in found["tokenizer"]
    assert found["linears"]["int4"] == 20 and not found["chat_template"]


def test_a_tokenizer_that_cannot_be_read_leaves_the_rest(tmp_path: Path) -> None:
    for path in (TINY_DIR / "target").iterdir():
        (tmp_path / path.name).symlink_to(path)
    damaged = tmp_path / "tokenizer.json"
    damaged.unlink()
    damaged.write_text("{}")
    found = described(tmp_path)
    assert found["linears"]["int4"] == 41 and found["stop_ids"] == [1, 4]
    assert str(tmp_path) in found["tokenizer"] and not found["chat_template"]


def test_directory_without_a_target_is_refused_in_one_line(tmp_path: Path) -> None:
    refuses(describe(tmp_path / "none"), "none: no such checkpoint directory or .gguf file")
    refuses(describe(tmp_path), "the directory is empty")
    refuses(describe(TINY_DIR / "head"), "model_type")


def test_dense_matrices_are_reported_with_their_bytes(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elements = 8 * 64 * 96
    stored, held = elements * 34 / 32 / 1e6, elements * 4 / 1e6
    report_stored(ExportSpec(target_model="llama", target_dir=bare), torch.float32)
    assert capsys.readouterr().err == (
        f"held dense: 8 linears in Q8_0: {stored:.1f} MB in the file, {held:.1f} MB in float32\n"
    )


@pytest.mark.parametrize("name", ["quantised", "tiny", "dummy"])
def test_no_line_where_no_matrix_becomes_dense(
    bare: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = {
        "quantised": ExportSpec(target_model="llama", target_dir=bare, quantize="int4-g32"),
        "tiny": ExportSpec(target_model="gemma4-tiny", target_dir=TINY_DIR / "target"),
        "dummy": ExportSpec(target_model="gemma4-31b", load_format="dummy"),
    }
    report_stored(specs[name], torch.bfloat16)
    assert capsys.readouterr().err == ""


def test_bfloat16_costs_half_as_much(bare: Path) -> None:
    spec = ExportSpec(target_model="llama", target_dir=bare)
    assert dense_line(spec, bare, torch.bfloat16).endswith("0.1 MB in bfloat16")
