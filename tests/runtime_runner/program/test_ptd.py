"""Reading `.ptd` files that ExecuTorch wrote, and refusing damaged ones in one line."""

import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from executorch.extension.flat_tensor.serialize import serialize
from hypothesis import given, settings

from eagle_aot.artifact import WEIGHTS
from eagle_aot.runtime_runner.program.pte import TensorData
from support.files.cuda import (
    Edit,
    damaged,
    edits,
    refusal,
    refusal_of_bytes,
    replaced,
    sample_files,
    sampled_lengths,
    tensor_data,
)

STORAGES = {
    "cuda_fqn_weight:cuda:target.w": bytes(range(200)),
    "a key\nof two lines": b"\1\2\3",
    "gewicht.größe.重さ": b"x" * 129,
    "": b"named by nothing",
    "equal": bytes(range(200)),
    "zero_a": bytes(16),
    "zero_b": bytes(16),
    "zero_longer": bytes(17),
}


@pytest.fixture(scope="module")
def whole() -> bytes:
    return tensor_data(STORAGES)


@pytest.fixture(scope="module")
def other() -> bytes:
    return sample_files().tensor_data()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights") / WEIGHTS


def read(path: Path, data: bytes) -> TensorData:
    path.write_bytes(data)
    return TensorData.open(path)


def refused(path: Path) -> str | None:
    """Return the refusal to open a file; a file that is opened must not be refused later."""
    opened: list[TensorData] = []
    line = refusal(lambda: opened.append(TensorData.open(path)), path)
    for data in opened:
        for key in data.keys:
            assert len(data.storage(key)) <= path.stat().st_size
            assert data.segment(key) == data.keys[key] >= 0
    return line


why = partial(refusal_of_bytes, refused)


def test_storages_read_back(path: Path, whole: bytes) -> None:
    data = read(path, whole)
    assert data.path == path
    assert {key: bytes(data.storage(key)) for key in data.keys} == STORAGES


def test_equal_storages_share_a_segment(path: Path, whole: bytes) -> None:
    data = read(path, whole)
    for key, content in STORAGES.items():
        for other, its_content in STORAGES.items():
            assert (data.segment(key) == data.segment(other)) == (content == its_content)


def test_no_storages_at_all(path: Path) -> None:
    assert not read(path, tensor_data({})).keys


def test_an_empty_storage(path: Path) -> None:
    data = read(path, tensor_data({"a": b"1", "empty": b"", "b": b"2"}))
    assert [len(data.storage(key)) for key in ("a", "empty", "b")] == [1, 0, 1]


def test_storages_are_writable_and_the_file_stays(path: Path, whole: bytes) -> None:
    data = read(path, whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of PyTorch, if the memory were read-only
        tensor = torch.frombuffer(data.storage("equal"), dtype=torch.int32)
    tensor.fill_(-1)
    assert set(data.storage("equal")) == {255}
    assert path.read_bytes() == whole
    assert bytes(TensorData.open(path).storage("equal")) == STORAGES["equal"]


def test_a_key_that_is_not_there(path: Path, whole: bytes) -> None:
    data = read(path, whole)
    for read_one in (data.storage, data.segment):
        line = refusal(lambda read_one=read_one: read_one("gone\n"), path)  # type: ignore[misc]
        assert line is not None and r"holds no blob named 'gone\n'" in line


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS
    assert refused(path) == f"{path}: missing: export again"
    assert why(path, b"").startswith("damaged (")


def test_every_truncation_is_refused(path: Path) -> None:
    data = sample_files().tensor_data()
    read(path, data)
    for length in sampled_lengths(len(data)):
        why(path, data[:length])


@pytest.mark.parametrize(("old", "new", "message"), [
    (b"FH01", b"FH02", "not a weight file (its header is missing)"),
    (b"FT01", b"FT02", "not a FT01 file (it begins with b'FT02')"),
    (b"FT01", b"ET12", "not a FT01 file (it begins with b'ET12')"),
    (b"zero_b", b"zero_\xff", "damaged ('utf-8' codec"),
    (b"equal", b"\xed\xa0\x80al", "damaged ('utf-8' codec"),  # half a surrogate pair
])  # fmt: skip
def test_changed_marks_and_names(
    path: Path, whole: bytes, old: bytes, new: bytes, message: str
) -> None:
    why_not = why(path, replaced(whole, old, new))
    assert why_not.startswith(message), why_not


def test_a_newer_schema_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialize, "_FLAT_TENSOR_VERSION", 1)
    message = why(path, tensor_data(STORAGES))
    assert message.startswith("schema version 1, this runner reads 0")


@pytest.mark.parametrize("field", range(16, 48, 8))
@pytest.mark.parametrize("value", [2**62, 2**63, 2**64 - 1])
def test_a_header_that_points_elsewhere(path: Path, whole: bytes, field: int, value: int) -> None:
    changed = whole[:field] + value.to_bytes(8, "little") + whole[field + 8 :]
    assert why(path, changed).startswith("damaged (points at byte")


@settings(max_examples=500, deadline=None)
@given(damage=edits())
def test_any_damage_is_read_or_refused(
    path: Path, whole: bytes, other: bytes, damage: list[Edit]
) -> None:
    path.write_bytes(damaged(whole, other, damage))
    refused(path)
