"""Trees of a real head, round by round, against a slow implementation in float64."""

from dataclasses import replace
from pathlib import Path

import pytest

from eagle_aot.export import Pair, load_draft
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.targets import load_target
from support.gemma_oracle import VOCAB, random_gemma, random_tokens, save_text_layout
from support.heads.files import HeadShape, head_tensors, write_speculators
from support.heads.reference import ReferenceHead
from support.heads.reference_trees import ReferenceText
from support.runner.eager_executor import EagerExecutor
from support.runner.watched import check_rounds

HEAD = HeadShape(vocab=VOCAB, draft_vocab=VOCAB, own_embedding=True)
TAPS = [0, 1, 3]
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


def test_a_head_of_a_smaller_vocabulary_drafts_target_ids(tmp_path: Path) -> None:
    """By its map of ids, in every node of the tree."""
    compare(SHAPES[2], replace(HEAD, draft_vocab=VOCAB // 2), tmp_path)


def compare(shape: Shape, head_shape: HeadShape, tmp_path: Path) -> int:
    """Check all rounds of a text and return how many drafts were accepted."""
    model = random_gemma()
    target = load_target(save_text_layout(model, tmp_path / "target"), 64)
    head = write_speculators(tmp_path / "head", head_shape, TAPS)
    executor = EagerExecutor(pair := Pair(target, load_draft(head, target, 64)))
    drafter = Eagle3Drafter(executor, executor.artifact, pair.draft.target_ids)
    reference = ReferenceHead(head_tensors(head_shape), head_shape)
    slow = ReferenceText(model.double(), reference, TAPS, random_tokens(20)[0].tolist())
    return check_rounds(executor, drafter, shape, slow, 12).accepted
