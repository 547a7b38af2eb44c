"""The bytes that must be read, worked out by hand from small weight tables."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.artifact import DRAFT_DECODE, PROGRAM, TARGET_VERIFY, WEIGHTS, Constants
from eagle_aot.lab.bench.floor import (
    BytesToRead,
    Floors,
    TakenExperts,
    bytes_to_read,
    experts_per_row,
    share_of_experts,
)
from eagle_aot.lab.bench.results import Floor
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.program.aoti import AotiExecutor
from eagle_aot.runtime_runner.program.device_weights import DeviceWeights
from eagle_aot.runtime_runner.program.plan import CudaMethod
from eagle_aot.runtime_runner.program.pte import Program, TensorData
from eagle_aot.runtime_runner.program.weight_table import Weight
from support.files.cuda import Files, Method, entry

WINDOW, MAX_SEQ_LEN = 32, 256
RING, FLAT = 2 * WINDOW, MAX_SEQ_LEN + 96
VOCAB, HIDDEN = 100, 16
KEYS = count()
OWNERS = (*(f"target.layers.{i}.self_attn" for i in (0, 1, 5)), "target.x")
CACHES = frozenset(f"{owner}.kv_cache.{kind}" for owner in OWNERS for kind in "kv")


def weight(
    fqn: str,
    *sizes: int,
    dtype: torch.dtype = torch.bfloat16,
    key: str | None = None,
    device: str = "cuda",
) -> Weight:
    """A contiguous weight in a storage of its own, or in the one of `key`."""
    strides = torch.empty(sizes, device="meta").stride()
    size = torch.Size(sizes).numel() * dtype.itemsize
    return Weight(fqn, key or str(next(KEYS)), size, dtype, device, 0, sizes, strides)


def bytes_of(*weights: Weight, draft: tuple[Weight, ...] = (), window: int = WINDOW) -> BytesToRead:
    """A program whose methods have these weights, each storage key a storage on the device."""
    methods = {
        name: CudaMethod(name, "library", table, (), ())
        for name, table in ((TARGET_VERIFY, weights), (DRAFT_DECODE, draft))
    }
    return BytesToRead(methods, constants_with(window), lambda weight: weight.storage_key, CACHES)


def constants_with(window: int = WINDOW) -> Constants:
    return Constants(
        max_seq_len=MAX_SEQ_LEN, vocab_size=VOCAB, n_layers=1, min_prefill_chunk=9,
        max_prefill_chunk=64, sliding_window=window, chain_len=3, max_rows=64, max_step_rows=256,
        max_batch_size=1, tail=16, flat_slots=FLAT, draft_vocab_size=VOCAB, hidden_size=HIDDEN,
        eos_ids=(),
    )  # fmt: skip


def loaded(directory: Path, methods: dict[str, dict[str, torch.Tensor]]) -> AotiExecutor:
    """An executor over a real program's files, as far as their weights."""
    tables = [
        Method(name, [entry(*w) for w in weights.items()]) for name, weights in methods.items()
    ]
    weights = {e.storage_key: methods[table.name][e.fqn] for table in tables for e in table.entries}
    Files(tables, weights).write(directory)
    executor = AotiExecutor.__new__(AotiExecutor)
    executor.methods = dict(Program.open(directory / PROGRAM).methods)
    data = TensorData.open(directory / WEIGHTS)
    executor.weights = DeviceWeights(data, executor.methods.values(), torch.device("cpu"), CACHES)
    return executor


def test_weights_are_read_once_whatever_the_rows() -> None:
    read = bytes_of(
        weight("target.layers.0.mlp.up_proj.packed", 8, 4, dtype=torch.uint8),
        weight("target.layers.0.mlp.up_proj.scale", 8, 1),
        weight("target.rotary.inv_freq", 4, dtype=torch.float32),
    )
    for rows in (1, 8):
        assert read.forward(TARGET_VERIFY, rows, 100) == 32 + 16 + 16


def test_weights_on_the_host_are_not_read() -> None:
    assert bytes_of(weight("target.c", 4, device="cpu")).forward(TARGET_VERIFY, 1, 0) == 0


def test_a_storage_is_read_once_even_if_two_weights_are_in_it() -> None:
    one = weight("target.a.weight", 8, 8, key="shared")
    other = weight("target.b.weight", 8, 8, key="shared")
    assert bytes_of(one, other).forward(TARGET_VERIFY, 1, 0) == 128


def test_equal_weights_are_read_once_and_caches_each(tmp_path: Path) -> None:
    weights = {
        "a.scale": torch.ones(8), "b.scale": torch.ones(8), "c.scale": torch.full((8,), 2.0),
        "x.kv_cache.k": torch.zeros(1, FLAT, 1), "x.kv_cache.v": torch.zeros(1, FLAT, 1),
    }  # fmt: skip
    target = {f"target.{name}": weight for name, weight in weights.items()}
    methods = {TARGET_VERIFY: target, DRAFT_DECODE: {"draft.scale": torch.ones(8)}}
    read = bytes_to_read(loaded(tmp_path, methods), constants_with())
    assert read is not None
    assert read.forward(TARGET_VERIFY, 1, 9) == 2 * 32 + 2 * 10 * 4
    # Once per forward, not once for all: what verification read, drafting reads again.
    assert read.forward(DRAFT_DECODE, 1, 9) == 32
    assert read.round(Shape.chain(1), 9) == 2 * 32 + 2 * 11 * 4 + 32
    without_head = bytes_to_read(loaded(tmp_path, methods), constants_with(), (TARGET_VERIFY,))
    assert without_head is not None and without_head.round(Shape.chain(1), 9) == 2 * 32 + 2 * 11 * 4


def test_an_embedding_is_looked_up() -> None:
    read = bytes_of(
        weight("target.embed_tokens.weight", VOCAB, HIDDEN),
        weight("target.lm_head.weight", VOCAB, HIDDEN),
    )
    table = VOCAB * HIDDEN * 2
    assert read.forward(TARGET_VERIFY, 1, 0) == table + 32
    assert read.forward(TARGET_VERIFY, 5, 0) == table + 5 * 32


def test_a_packed_output_table_is_one_too() -> None:
    read = bytes_of(
        weight("target.embed_tokens.weight", VOCAB, HIDDEN),
        weight("target.lm_head.packed", VOCAB, HIDDEN // 2, dtype=torch.uint8),
    )
    assert read.forward(TARGET_VERIFY, 2, 0) == VOCAB * HIDDEN // 2 + 2 * 32


def test_an_embedding_that_is_the_output_table_too_is_read_whole() -> None:
    """Even where the draft head has an output table, which is another method's."""
    read = bytes_of(
        weight("target.embed_tokens.weight", VOCAB, HIDDEN),
        draft=(weight("draft.lm_head.weight", 2, 2),),
    )
    assert read.forward(TARGET_VERIFY, 1, 0) == VOCAB * HIDDEN * 2


def test_a_copy_of_an_output_table_does_not_count() -> None:
    """The floor is that of the same program without it."""
    table = weight("target.lm_head.weight", VOCAB, HIDDEN)
    copy = weight("table_screen.values", VOCAB, HIDDEN, dtype=torch.int8)
    assert bytes_of(table, copy).forward(TARGET_VERIFY, 1, 0) == VOCAB * HIDDEN * 2


@pytest.mark.parametrize("part", ["weight", "codes"])
def test_the_draft_head_looks_up_the_targets_embedding(part: str) -> None:
    """The method's name holds the target's name and nothing else."""
    read = bytes_of(
        draft=(
            weight("target.embed_tokens.weight", VOCAB, HIDDEN),
            weight(f"draft.lm_head.{part}", 50, HIDDEN),
        )
    )
    assert read.forward(DRAFT_DECODE, 3, 0) == 50 * 32 + 3 * 32


def test_a_draft_head_whose_output_table_is_the_targets_embedding_reads_it_whole() -> None:
    read = bytes_of(draft=(weight("target.embed_tokens.weight", VOCAB, HIDDEN),))
    assert read.forward(DRAFT_DECODE, 3, 0) == VOCAB * 32


def test_the_draft_head_looks_up_its_own_embedding() -> None:
    read = bytes_of(
        draft=(
            weight("draft.embed_tokens.weight", VOCAB, HIDDEN),
            weight("draft.lm_head.weight", 50, HIDDEN),
        )
    )
    assert read.forward(DRAFT_DECODE, 3, 0) == 50 * 32 + 3 * 32


@pytest.mark.parametrize(
    ("context", "rows", "slots"), [(0, 1, 1), (10, 4, 14), (200, 8, 208), (256, 120, FLAT)]
)
def test_a_flat_cache_is_read_up_to_the_last_row(context: int, rows: int, slots: int) -> None:
    read = bytes_of(weight("target.layers.5.self_attn.kv_cache.k", 2, FLAT, 4))
    assert read.forward(TARGET_VERIFY, rows, context) == 2 * slots * 4 * 2


@pytest.mark.parametrize(("context", "rows", "slots"), [(0, 1, 1), (20, 8, 28), (200, 8, WINDOW)])
def test_a_ring_is_read_for_one_window(context: int, rows: int, slots: int) -> None:
    read = bytes_of(weight("target.layers.0.self_attn.kv_cache.v", 2, RING, 4))
    assert read.forward(TARGET_VERIFY, rows, context) == 2 * slots * 4 * 2


def test_each_sequence_of_a_forward_reads_its_own_share() -> None:
    caches = (
        weight("target.layers.0.self_attn.kv_cache.k", 2, 4 * RING, 4),
        weight("target.layers.1.self_attn.kv_cache.k", 2, 4 * FLAT, 4),
    )
    methods = {TARGET_VERIFY: CudaMethod(TARGET_VERIFY, "library", caches, (), ())}
    constants = replace(constants_with(), max_batch_size=4)
    read = BytesToRead(methods, constants, lambda weight: weight.storage_key, CACHES)
    for sequences in (1, 3):
        expected = sequences * (WINDOW + 208) * 2 * 4 * 2
        assert read.forward(TARGET_VERIFY, 8, 200, sequences) == expected


@pytest.mark.parametrize(("rows", "sequences"), [(1, 1), (8, 1), (8, 3)])
def test_a_sequence_reads_one_state_and_the_tokens_of_a_tail(rows: int, sequences: int) -> None:
    """However many states are kept, at whatever context."""
    owner, places, slots = "target.layers.2.linear_attn.kv_cache", 20, 416
    read = bytes_of(
        weight(f"{owner}.state", places, 4, 8, 8, dtype=torch.float32),
        weight(f"{owner}.position", places, dtype=torch.int64),
        weight(f"{owner}.terms", slots, 10, dtype=torch.float32),
    )
    expected = sequences * (4 * 8 * 8 * 4 + 8 + (16 + rows) * 10 * 4)
    assert read.forward(TARGET_VERIFY, rows, 4000, sequences) == expected


def test_without_a_window_every_cache_is_flat() -> None:
    read = bytes_of(weight("target.layers.0.self_attn.kv_cache.v", 1, FLAT, 4), window=0)
    assert read.forward(TARGET_VERIFY, 1, 99) == 100 * 4 * 2


def test_a_context_that_a_ring_would_hold_too_has_a_flat_cache() -> None:
    read = bytes_of(weight("target.x.kv_cache.k", 1, FLAT, 1), window=FLAT // 2)
    assert read.forward(TARGET_VERIFY, 1, 199) == 200 * 2


def test_a_round_is_its_chain_verification_and_reseed() -> None:
    read = bytes_of(
        weight("target.a", 1000, dtype=torch.uint8),
        draft=(
            weight("draft.a", 100, dtype=torch.uint8),
            weight("draft.embed_tokens.weight", VOCAB, 1, dtype=torch.uint8),
            weight("draft.lm_head.weight", 7, dtype=torch.uint8),
        ),
    )
    assert read.round(Shape.chain(0), 50) == 1000
    assert read.round(Shape.chain(1), 50) == 1000 + (107 + 2)  # the reseed gave the draft
    assert read.round(Shape.chain(3), 50) == 1000 + 2 * (107 + 1) + (107 + 4)
    assert read.round(Shape(3, 2, 6), 50) == 1000 + 2 * (107 + 2) + (107 + 4)


@given(rows=st.integers(1, 7), context=st.integers(0, 240))
def test_more_rows_and_more_context_never_read_less(rows: int, context: int) -> None:
    read = bytes_of(
        weight("target.embed_tokens.weight", VOCAB, HIDDEN),
        weight("target.lm_head.weight", VOCAB, HIDDEN),
        weight("target.layers.0.self_attn.kv_cache.k", 2, RING, 4),
        weight("target.layers.1.self_attn.kv_cache.k", 2, FLAT, 4),
    )
    here = read.forward(TARGET_VERIFY, rows, context)
    assert here < read.forward(TARGET_VERIFY, rows + 1, context)
    assert here < read.forward(TARGET_VERIFY, rows, context + 1)


def test_a_floor_is_bytes_over_bandwidth() -> None:
    read = bytes_of(weight("target.a", 1000), draft=(weight("draft.a", 500),))
    floors = Floors(read, bandwidth=1e6)
    assert floors.forward(TARGET_VERIFY, 4, 0) == Floor(bytes=2000, ms=2.0)
    assert floors.round(Shape.chain(1), 0) == Floor(bytes=3000, ms=3.0)


def test_without_tables_there_is_no_floor() -> None:
    floors = Floors(None, bandwidth=1e6)
    assert floors.forward(TARGET_VERIFY, 1, 0) is floors.round(Shape.chain(4), 0) is None


def test_of_experts_those_count_that_rows_take() -> None:
    """Routers whose rows have one length choose all experts alike; long rows are chosen by half of
    all tokens."""
    names = [f"target.layers.0.mlp.{n}" for n in ("experts.down_proj.codes", "gate.weight")]
    table = weight(names[0], 16, 4, dtype=torch.int16), weight(names[1], 16, 8)
    router = torch.eye(16)
    taken = TakenExperts({"target.layers.0.mlp": router}, 2)
    methods = {TARGET_VERIFY: CudaMethod(TARGET_VERIFY, "library", table, (), ())}
    read = BytesToRead(methods, constants_with(), lambda w: w.storage_key, CACHES, taken)
    one = read.forward(TARGET_VERIFY, 1, 0) - 256
    assert one == 128 * 2 / 16
    expected = 128 * (1 - (14 / 16) ** 8)
    assert read.forward(TARGET_VERIFY, 8, 0) - 256 == pytest.approx(expected, rel=0.05)
    router[:2] *= 1e6
    assert share_of_experts(router, 2, 8) < 0.9 * expected / 128


def test_the_number_of_experts_of_a_row_is_that_of_the_products() -> None:
    few = [{"top_k": 8, "features": 1408}]
    kernels = {"kernels": {TARGET_VERIFY: {"eagle_aot::int4_experts_few": few}}}
    assert experts_per_row(SimpleNamespace(decisions=kernels)) == 8  # type: ignore[arg-type]
    assert experts_per_row(SimpleNamespace(decisions={})) == 0  # type: ignore[arg-type]
