"""Image placeholder ids may be in prompts but never in drafts, with any drafter."""

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, StepRows, chain_rows
from eagle_aot.runtime_runner.decode.target import Forward, no_moves
from support.image_pair import NEVER, PLACEHOLDER
from support.images import drawn


class OfPlaceholders:
    """Drafts nothing but ids that stand for something else."""

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        return Draft(torch.tensor([NEVER * 2])[:, : shape.depth])

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Nothing is learned."""


def test_round_verifies_no_image_placeholder(
    image_runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, seen = image_runner.target, list[Tensor]()
    verify = target.verify

    def watched(step: StepRows, moves: Tensor, *, largest_only: bool) -> Forward:
        seen.append(step.tokens)
        return verify(step, moves, largest_only=largest_only)

    monkeypatch.setattr(target, "verify", watched)
    running = BatchState([0], 16, "cpu")
    running.place(torch.tensor([[9]]), 0)
    Round(target, OfPlaceholders(), 4, running).step()
    assert [tokens.tolist() for tokens in seen] == [[[9, 9, 9, 9, 9]]]


def test_program_never_chooses_an_image_placeholder(image_runner: Runner) -> None:
    where = torch.tensor([[9]]), torch.zeros(1).long(), torch.zeros(1).long()
    step = chain_rows(*where, 16)
    logits, _ = image_runner.target.verify(step, no_moves(1, 16, step.tokens.device))
    (impossible,) = logits[0, 0].isneginf().nonzero(as_tuple=True)
    assert impossible.tolist() == NEVER


@pytest.mark.slow
def test_prompt_lookup_after_an_image_changes_no_token(image_runner: Runner) -> None:
    runner = load_artifact(image_runner.directory, drafter="ngram")
    read = runner.reader.read(f"See {PLACEHOLDER} here. See", images=[drawn(90, 90)])
    plain = runner.generate(read, 16, speculate=False)
    assert runner.generate(read, 16, 7).token_ids == plain.token_ids
