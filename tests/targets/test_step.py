"""Steps of whole targets: trees, batches, padding and moves, compared with plain decoding."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.step import (
    MAX_CHAIN_LEN,
    MAX_ROWS,
    MAX_TREE_DEPTH,
    MIN_PREFILL,
    PADDING_SLOTS,
    SCRATCH_SLOTS,
    TAIL,
    PromptChunk,
    Step,
    chain_tail,
    flat_slots,
    longest_chunk,
    one_row_of_rows,
    ring_slots,
    rows_of_sequences,
)
from eagle_aot.triton_kernels.sdpa_splitk import tiling
from support.gemma_oracle import oracle_states, random_gemma, random_tokens, save_text_layout
from support.golden_cases import relative_error
from support.kernels.sdpa_cases import Text, tree

WINDOWS = [4, 8, 64]
LONGEST = 320
TIGHT = 1e-5  # float32 sums in another order, four layers deep
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Random checkpoints by the window of their sliding layers."""
    root = tmp_path_factory.mktemp("gemma")
    return {
        window: save_text_layout(random_gemma(sliding_window=window), root / str(window))
        for window in WINDOWS
    }


def load(checkpoint: Path, sequences: int = 1) -> TapTarget:
    target = load_target(checkpoint, LONGEST, max_batch_size=sequences)
    target.set_eagle_tap_layers([1, 3])
    return target


@torch.no_grad()
def prompt(target: TapTarget, tokens: Sequence[int], sequence: int = 0) -> None:
    """Run a prompt in chunks that are long, short and of one row."""
    done, sizes = 0, [90, 7, 1]
    while done < len(tokens):
        rows = torch.arange(done, min(done + sizes[0], len(tokens)))
        chunk = PromptChunk(rows, torch.tensor([sequence]))
        target.run(torch.tensor([tokens[done : done + len(rows)]]), chunk)
        done += len(rows)
        sizes = [*sizes[1:], sizes[0]]


@torch.no_grad()
def step(
    target: TapTarget,
    texts: dict[int, Text],
    rows: int = 0,
    moves: dict[int, list[int]] | None = None,
    padding: int = 0,
) -> tuple[Tensor, Tensor]:
    """Run the rows of texts by sequence: logits [B, T, V] and taps [B, T, num_taps * H].

    Missing rows of shorter texts are padding with the token `padding`.
    """
    count = rows or max(len(text.rows) for text in texts.values())
    tokens = torch.full((len(texts), count), padding)
    positions, tail = torch.full_like(tokens, -1), torch.full((*tokens.shape, TAIL), -1)
    moved = torch.full((len(texts), TAIL), -1)
    for b, (sequence, text) in enumerate(texts.items()):
        for row, node in enumerate(text.rows):
            tokens[b, row] = node.token
            positions[b, row] = text.position(row)
            tail[b, row] = torch.tensor(text.tail(row))
        sources = (moves or {}).get(sequence, [])
        moved[b, TAIL - len(sources) :] = torch.tensor(sources)
    return target.run(tokens, Step(positions, torch.tensor(list(texts)), tail, moved))


def drawn_tree(
    parents: Sequence[int], slots: Sequence[int], seed: int, committed: Sequence[int]
) -> Text:
    """Make random rows that follow `parents`, with the slots of all rows but row 0.

    `slots` are counted from the end of the committed tokens.
    """
    shape = tree(len(committed), parents, [0, *slots])
    tokens = random_tokens(len(parents), seed)[0].tolist()
    rows = (replace(row, token=token) for row, token in zip(shape.rows, tokens, strict=True))
    return Text(committed, tuple(rows))


SCATTERED = [87, 20, 61, 16, 33, 40, 17, 86]
PARENTS = [-1, 0, 0, 2, 1, 4, 3, 6, 7]


@pytest.mark.parametrize("length", [1, 40, 130, 250])
@pytest.mark.parametrize("window", WINDOWS)
def test_every_row_of_a_tree_equals_transformers_on_its_path(
    checkpoints: dict[int, Path], window: int, length: int
) -> None:
    target, model = load(checkpoints[window]), random_gemma(sliding_window=window)
    committed = random_tokens(length, seed=3)[0].tolist()
    prompt(target, committed)
    text = drawn_tree(PARENTS, SCATTERED, 4, committed)
    logits, taps = step(target, {0: text})
    for row in range(len(PARENTS)):
        expected, states = oracle_states(model, torch.tensor([text.path(row)]))
        assert relative_error(logits[0, row], expected[-1]) < TOLERANCE
        assert relative_error(taps[0, row], torch.cat([states[1, -1], states[3, -1]])) < TOLERANCE


@pytest.mark.parametrize("sequences", [2, 4])
@pytest.mark.parametrize("window", WINDOWS)
def test_parallel_sequences_equal_each_sequence_alone_over_several_rounds(
    checkpoints: dict[int, Path], window: int, sequences: int
) -> None:
    """They have different lengths and another order than their caches, and accept other paths."""
    together = load(checkpoints[window], sequences)
    committed = [
        random_tokens(length, seed=length)[0].tolist() for length in (130, 3, 40, 97)[:sequences]
    ]
    alone = [load(checkpoints[window]) for _ in committed]
    for sequence, tokens in enumerate(committed):
        prompt(together, tokens, sequence)
        prompt(alone[sequence], tokens)
    moves: dict[int, list[int]] = {}
    for number, accepted in enumerate((8, 5, 0, 3)):
        texts = {
            s: drawn_tree(PARENTS, SCATTERED, 7 * s + number, committed[s])
            for s in reversed(range(sequences))
        }
        logits, taps = step(together, texts, moves=moves)
        for b, (s, text) in enumerate(texts.items()):
            alone_moves = {0: moves[s]} if s in moves else None
            alone_logits, alone_taps = step(alone[s], {0: text}, moves=alone_moves)
            assert relative_error(logits[b], alone_logits[0]) < TIGHT
            assert relative_error(taps[b], alone_taps[0]) < TIGHT
        for s, text in texts.items():
            row = (accepted + s) % len(PARENTS)
            moves[s] = [node.slot for node in text.branch(row)]
            committed[s] = text.path(row)
    for s, target in enumerate(alone):  # after moves the text is stored like a prompt
        fresh = load(checkpoints[window])
        prompt(fresh, committed[s])
        text = drawn_tree([-1], [], 99, committed[s])
        moved, _ = step(target, {0: text}, moves={0: moves[s]})
        assert relative_error(moved, step(fresh, {0: text})[0]) < TIGHT


@pytest.mark.parametrize("window", WINDOWS)
def test_padding_changes_no_bit(checkpoints: dict[int, Path], window: int) -> None:
    """Padding has any token, and a sequence of padding only keeps its entries."""
    outputs = []
    for padding in (0, 50):
        target = load(checkpoints[window], 2)
        committed = [random_tokens(length, seed=1)[0].tolist() for length in (120, 30)]
        for sequence, tokens in enumerate(committed):
            prompt(target, tokens, sequence)
        texts = {0: drawn_tree(PARENTS[:3], SCATTERED, 2, committed[0]), 1: Text(committed[1], ())}
        first, _ = step(target, texts, rows=8, padding=padding)
        texts[1] = drawn_tree(PARENTS, SCATTERED, 3, committed[1])
        second, _ = step(target, {1: texts[1]}, padding=padding)
        outputs.append((first[0, :3], second))
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))
    expected, _ = oracle_states(
        random_gemma(sliding_window=window), torch.tensor([texts[1].path(8)])
    )
    assert relative_error(outputs[0][1][0, 8], expected[-1]) < TOLERANCE


def test_a_target_with_one_sequence_does_not_read_sequence_indices(
    checkpoints: dict[int, Path],
) -> None:
    target = load(checkpoints[8])
    caches = [m for m in cast(nn.Module, target).modules() if isinstance(m, KVCache)]
    assert caches and all(cache.sequences == 1 for cache in caches)
    text = drawn_tree([-1, 0], SCATTERED, 1, [])
    assert torch.equal(step(target, {0: text})[0], step(target, {5: text})[0])


def test_the_tail_of_a_chain_is_the_slots_of_its_positions() -> None:
    tail = chain_tail(torch.tensor([[0, 3], [15, 100]]))
    assert tail.shape == (2, 2, TAIL)
    assert tail[0, 0].tolist() == [-1] * 15 + [0]
    assert tail[0, 1].tolist() == [-1] * 12 + [0, 1, 2, 3]
    assert tail[1, 0].tolist() == list(range(16))
    assert tail[1, 1].tolist() == list(range(85, 101))


def test_flattened_rows_are_restored_by_rows_of_sequences() -> None:
    x = torch.arange(24).view(2, 3, 4)
    flat = one_row_of_rows(x)
    assert flat.shape == (1, 6, 4) and flat[0, 4].tolist() == x[1, 1].tolist()
    assert torch.equal(rows_of_sequences(flat, x), x)
    assert one_row_of_rows(x[:1]).shape == (1, 3, 4)
    assert torch.equal(rows_of_sequences(x[:1], x[:1, :, 0]), x[:1])


@pytest.mark.parametrize("window", [1, 4, 16, 95, 96, 97, 1024])
def test_a_ring_holds_a_window_and_the_rows_or_slots_of_any_forward(window: int) -> None:
    spare = ring_slots(window) - window
    assert spare >= longest_chunk(window) >= MIN_PREFILL  # so that a prompt chunk fits
    assert spare >= SCRATCH_SLOTS + PADDING_SLOTS >= TAIL + MAX_ROWS + PADDING_SLOTS


def test_step_sizes_agree_with_the_kernels() -> None:
    assert MAX_CHAIN_LEN == MAX_TREE_DEPTH == TAIL - 1
    assert tiling.TAIL == TAIL
    assert MIN_PREFILL == MAX_ROWS + 1
    assert flat_slots(100) - 100 >= TAIL + MAX_ROWS + PADDING_SLOTS
