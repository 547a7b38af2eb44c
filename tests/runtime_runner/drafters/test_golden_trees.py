"""Trees of a real head, round by round, against a slow implementation in float64."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle_aot.artifact import Constants
from eagle_aot.export import Pair, load_draft
from eagle_aot.runtime_runner.decode.round import BatchState, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.engine.request import Limits
from eagle_aot.targets import load_target
from support.gemma_oracle import VOCAB, random_gemma, random_tokens, save_text_layout
from support.heads.files import HeadShape, head_tensors, write_speculators
from support.heads.reference import ReferenceHead
from support.heads.reference_trees import ReferenceText
from support.runner.eager_executor import EagerExecutor
from support.runner.one_text import decode
from support.runner.watched import watch

HEAD = HeadShape(vocab=VOCAB, draft_vocab=VOCAB, own_embedding=True)
TAPS = [0, 1, 3]
PROMPT, ROOM = 20, 12
SHAPES = [
    Shape(1, 4, 4),
    Shape(3, 3, 9),
    Shape(4, 4, 16),
    Shape(6, 8, 32),
    Shape(8, 2, 12),
    Shape.chain(4),
    Shape.of_paths(((0,), (1,), (2,), (0, 0), (0, 3), (1, 1), (0, 3, 0), (1, 1, 2))),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_trees_acceptance_and_text_are_those_of_the_formulas(shape: Shape, tmp_path: Path) -> None:
    accepted = compare(shape, HEAD, tmp_path)
    assert shape.nodes < 32 or accepted, "nothing is accepted"


def test_a_head_of_fewer_tokens_drafts_the_targets(tmp_path: Path) -> None:
    """By its map of ids, in every node of the tree."""
    compare(SHAPES[2], replace(HEAD, draft_vocab=VOCAB // 2), tmp_path)


def compare(shape: Shape, head_shape: HeadShape, tmp_path: Path) -> int:
    """Drafts that were accepted, once all is as the formulas say."""
    model = random_gemma()
    directory = save_text_layout(model, tmp_path / "target")
    head = write_speculators(tmp_path / "head", head_shape, TAPS)
    target = load_target(directory, 64)
    pair = Pair(target, load_draft(head, target, 64))
    constants = Constants(
        max_seq_len=64, vocab_size=VOCAB, n_layers=4, min_prefill_chunk=65, max_prefill_chunk=96,
        sliding_window=8, chain_len=4, max_rows=64, max_batch_size=1, tail=16, flat_slots=160,
        draft_vocab_size=head_shape.draft_vocab, hidden_size=32, eos_ids=(),
    )  # fmt: skip
    executor = EagerExecutor(pair)
    drafter = Eagle3Drafter(executor, constants, pair.draft.target_ids)
    drafted = watch(drafter)
    round_ = Round(TargetMethods(executor, constants), drafter, shape, BatchState([0], 16, "cpu"))
    prompt = random_tokens(PROMPT)[0].tolist()
    output, stats = decode(round_, prompt, Limits(max_new_tokens=ROOM, stop_ids=frozenset()))

    reference = ReferenceHead(head_tensors(head_shape), head_shape)
    slow = ReferenceText(model.double(), reference, TAPS, list(prompt))
    slow.text.append(slow.greedy(slow.text))
    while len(slow.text) < PROMPT + ROOM:
        slow.grow(shape)
    assert output == slow.text[PROMPT : PROMPT + ROOM]
    assert drafted == slow.rounds
    return stats.accepted
