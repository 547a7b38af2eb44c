"""Weights and caches over real files: what is shared, what is not, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.artifact import PROGRAM, WEIGHTS
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.runtime_runner.program.cache_pages import PAGE, BufferShape
from eagle_aot.runtime_runner.program.device_weights import (
    DeviceWeights,
    buffer_shape,
    page_budget,
)
from eagle_aot.runtime_runner.program.pte import Program, TensorData, Weight, check_weights
from support.files.cuda import (
    CPU,
    Edit,
    Files,
    Method,
    damaged,
    edits,
    entry,
    refusal,
    sample_files,
)
from support.runner.logging_executor import CONSTANTS

HOST = torch.device("cpu")
CONSTANTS4 = replace(CONSTANTS, max_batch_size=4)
CACHES = ("target.kv_cache.k", "target.kv_cache.v", "draft.kv_cache.k", "t.kv_cache.k")


class Loaded:
    """The weights of two files, found by method and name."""

    def __init__(self, directory: Path, files: Files) -> None:
        files.write(directory)
        program = Program.open(directory / PROGRAM)
        data = TensorData.open(directory / WEIGHTS)
        check_weights(program, data)
        self.path = data.path
        self.methods = program.methods
        self.weights = DeviceWeights(data, program.methods.values(), HOST, CACHES)

    def weight(self, method: str, fqn: str) -> Weight:
        return next(w for w in self.methods[method].weights if w.fqn == fqn)

    def tensor(self, method: str, fqn: str) -> Tensor:
        return self.weights.tensor(self.weight(method, fqn))


def over(tensors: dict[str, Tensor], device: int = 1) -> Files:
    """One method, `forward`, over these weights."""
    entries = [entry(fqn, tensor, device) for fqn, tensor in tensors.items()]
    weights = {e.storage_key: t for e, t in zip(entries, tensors.values(), strict=True)}
    return Files([Method(entries=entries)], weights)


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.fixture
def sample(tmp_path: Path) -> Loaded:
    return Loaded(tmp_path, sample_files())


def test_equal_weights_share_one_storage(sample: Loaded) -> None:
    whole = sample.tensor("target_verify", "target.w")
    column = sample.tensor("target_verify", "target.column")
    assert address(whole) == address(column)
    assert column.tolist() == [8, 14, 20] and whole.tolist()[1] == [6, 7, 8, 9, 10, 11]


def test_equal_caches_have_separate_storages(sample: Loaded) -> None:
    names = ("target.kv_cache.k", "target.kv_cache.v")
    caches = [sample.tensor("target_verify", name) for name in names]
    caches.append(sample.tensor("draft_decode", "draft.kv_cache.k"))
    assert len({address(cache) for cache in caches}) == 3
    for i, cache in enumerate(caches):
        assert not cache.any()
        cache.fill_(i + 1)
    assert [cache.unique().tolist() for cache in caches] == [[1], [2], [3]]


def test_a_cache_does_not_share_with_an_equal_weight(tmp_path: Path) -> None:
    loaded = Loaded(tmp_path, over({"t.zeros": torch.zeros(8), "t.kv_cache.k": torch.zeros(8)}))
    loaded.tensor("forward", "t.kv_cache.k").fill_(1)
    assert not loaded.tensor("forward", "t.zeros").any()


@pytest.mark.parametrize("fqn", ["target.kv_cache.k", "target.w"])
def test_tensor_named_by_two_methods_is_shared(sample: Loaded, fqn: str) -> None:
    seen_by_verify = sample.tensor("target_verify", fqn)
    seen_by_draft = sample.tensor("draft_decode", fqn)
    seen_by_verify[1, 2] = 9
    assert seen_by_draft[1, 2] == 9
    assert sample.tensor("draft_decode", fqn)[1, 2] == 9  # also by a later call


BASE = torch.arange(60, dtype=torch.float32)
VIEWS = {
    "whole": BASE.clone(),
    "columns": BASE.clone().view(6, 10)[1:, 3::2],
    "transposed": (BASE + 1).view(6, 10).T,
    "expanded": (BASE + 2)[7].expand(4, 5),
    "scalar": (BASE + 3)[59],
    "no_rows": (BASE + 4).view(6, 10)[6:],
    "empty": torch.zeros(0, 3),
    "empty_ids": torch.zeros(0, dtype=torch.int64),
    "bf16": torch.randn(3, 5).bfloat16()[:, 1:],
    "packed": torch.arange(256).to(torch.uint8).view(4, 64),
    "ids": torch.tensor([-(2**62), 5]),
    "mask": torch.tensor([[True, False], [False, True]]),
}


@pytest.mark.parametrize("device", [0, 1])
def test_views_are_those_that_were_written(tmp_path: Path, device: int) -> None:
    loaded = Loaded(tmp_path, over(VIEWS, device))
    for fqn, view in VIEWS.items():
        tensor = loaded.tensor("forward", fqn)
        assert (tensor.dtype, tensor.device) == (view.dtype, HOST)
        assert (tensor.shape, tensor.stride()) == (view.shape, view.stride())
        assert tensor.storage_offset() == view.storage_offset()
        assert torch.equal(tensor, view)


@pytest.mark.parametrize(("sizes", "strides", "offset"), [
    ((0,), (1,), 12),
    ((0, 2**60), (2**63 - 1, 2**63 - 1), 0),
    ((2**60, 0), (1, 1), 12),
    ((1,), (2**63 - 1,), 11),
    ((1, 1), (2**63 - 1, 2**63 - 1), 0),
    ((1,) * 200, (2**62,) * 200, 3),
    ((12,), (0,), 11),
    ((2**58, 1), (0, 9), 0),
])  # fmt: skip
def test_odd_views_that_fit_can_be_made(
    tmp_path: Path, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    written = entry("w", torch.ones(12), sizes=sizes, strides=strides, storage_offset=offset)
    loaded = Loaded(
        tmp_path, Files([Method(entries=[written])], {written.storage_key: torch.ones(12)})
    )
    tensor = loaded.tensor("forward", "w")
    assert (tuple(tensor.shape), tensor.stride()) == (sizes, strides)
    assert tensor.storage_offset() == offset


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    directory = sample_files().write(tmp_path_factory.mktemp("pair"))
    return directory, (directory / PROGRAM).read_bytes(), (directory / WEIGHTS).read_bytes()


@settings(max_examples=500, deadline=None)
@given(program=edits() | st.just([]), weights=edits() | st.just([]))
def test_weights_of_accepted_files_can_be_loaded(
    pair: tuple[Path, bytes, bytes], program: list[Edit], weights: list[Edit]
) -> None:
    """Damaged files are refused while they are read, not by PyTorch when tensors are made."""
    directory, whole_program, whole_weights = pair
    paths = directory / PROGRAM, directory / WEIGHTS
    paths[0].write_bytes(damaged(whole_program, whole_weights, program))
    paths[1].write_bytes(damaged(whole_weights, whole_program, weights))
    refusal(lambda: make_all(*paths), *paths)


def make_all(program_path: Path, weights_path: Path) -> None:
    """Make every tensor of two files."""
    program, data = Program.open(program_path), TensorData.open(weights_path)
    check_weights(program, data)
    loaded = DeviceWeights(data, program.methods.values(), HOST, CACHES)
    for method in program.methods.values():
        for weight in method.weights:
            assert loaded.tensor(weight).shape == weight.sizes


def test_writing_does_not_change_the_file(tmp_path: Path) -> None:
    files = over({"t.kv_cache.k": torch.zeros(8), "t.w": torch.ones(8)})
    files.methods[0].entries = [
        *files.methods[0].entries,
        entry("t.position", torch.tensor([4]), CPU),
    ]
    files.weights = {**files.weights, "cuda_fqn_weight:cpu:t.position": torch.tensor([4])}
    loaded = Loaded(tmp_path, files)
    before = loaded.path.read_bytes()
    for weight in loaded.methods["forward"].weights:
        assert not loaded.weights.tensor(weight).fill_(77).eq(0).any()
    assert loaded.path.read_bytes() == before
    fresh = Loaded(tmp_path / "fresh", files)
    assert fresh.tensor("forward", "t.position").tolist() == [4]


def test_bytes_by_part_count_every_storage_once(sample: Loaded) -> None:
    cache = 2 * 4 * 2
    assert sample.weights.bytes_by_part() == {
        "target weights": 24 * 4 + 16,  # w and column are equal
        "target cache": 2 * cache,
        "draft cache": cache,
        "draft weights": 8,
    }


def test_free_memory_is_checked_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs room is the storages that will be there, not the views of them."""
    sample_files().write(tmp_path)
    methods = Program.open(tmp_path / PROGRAM).methods
    data = TensorData.open(tmp_path / WEIGHTS)
    needed = sum(DeviceWeights(data, methods.values(), HOST, CACHES).bytes_by_part().values())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (needed - 1, 1 << 30))
    with pytest.raises(UnsupportedError, match="weights take"):
        DeviceWeights(data, methods.values(), torch.device("cuda", 0), CACHES, CONSTANTS)


@pytest.mark.parametrize(("free", "limit", "pages"), [
    (1000, None, None), (901, None, None), (899, None, 649), (1000, 700, 600), (1000, 901, None),
    (800, 700, 600),
])  # fmt: skip
def test_caches_are_paged_where_not_all_fit(
    free: int, limit: int | None, pages: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 pages of weights, 100 of states and 750 of keys and values, on a GPU of 1,600 pages."""
    parts = {"target weights": 50 * PAGE, "target cache": 850 * PAGE}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * PAGE, 1600 * PAGE))
    memory = None if limit is None else limit * PAGE
    device = torch.device("cuda", 0)
    assert page_budget(parts, 750 * PAGE, device, CONSTANTS4, memory) == pages


def test_no_memory_for_one_sequence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"target weights": 50 * PAGE, "target cache": 400 * PAGE}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (149 * PAGE, 1600 * PAGE))
    with pytest.raises(UnsupportedError, match="caches of 1 sequences"):
        page_budget(parts, 400 * PAGE, torch.device("cuda", 0), CONSTANTS4, None)


def test_keys_of_all_sequences_are_a_buffer_of_pages() -> None:
    by_head, by_token = (4 * 352 * 128, 128, 1), (128, 8 * 128, 1)
    weight = Weight("target.a.k", "k", 0, torch.bfloat16, "cuda", 0, (8, 4 * 352, 128), by_head)
    assert buffer_shape(weight, 4) == BufferShape(8, 4, 352, 256)
    assert buffer_shape(replace(weight, strides=by_token), 4) == BufferShape(1, 4, 352, 2048)
