"""Ids that stand for pictures are in prompts, and in no draft."""

import torch
from torch import Tensor

from eagle_aot.artifact import EAGLE3
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.drafters.ngram import NgramDrafter
from eagle_aot.runtime_runner.rounds.acceptance import committed
from eagle_aot.runtime_runner.rounds.round import Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from support.picture_pair import IMAGE, NEVER
from support.pictures import drawn


def drafts_behind(drafter: NgramDrafter, text: list[int], length: int) -> Tensor:
    tokens = torch.tensor([text])
    first = torch.zeros(1, dtype=torch.int64)
    drafter.observe(committed(tokens[:, 1:], torch.arange(len(text) - 1), first), tokens)
    running = Running([0], 16, "cpu")
    running.place(tokens[:, -1:], len(text) - 1)
    return drafter.propose(running, Shape.chain(length)).tokens


def test_prompt_lookup_passes_over_them(picture_runner: Runner) -> None:
    text = [3, 8, IMAGE, IMAGE, 9, 3, 8]
    constants = picture_runner.constants
    plain = drafts_behind(NgramDrafter(constants, "cpu"), text, 3)
    assert plain.tolist() == [[IMAGE, IMAGE, 9]]
    assert drafts_behind(NgramDrafter(constants, "cpu", NEVER), text, 3).tolist() == [[8, 8, 9]]


def test_a_head_never_proposes_them(picture_runner: Runner) -> None:
    """Of which its vocabulary has some."""
    drafter = picture_runner.drafter
    assert drafter.kind == EAGLE3 and drafter.target_ids is not None
    own = torch.isin(drafter.target_ids, torch.tensor(NEVER))
    assert own.any()
    picture_runner.generate("What is this?", 8, images=[drawn(90, 90)])
    logits = drafter.logits(torch.tensor([0, 1]))
    live = logits.isfinite().any(-1)[:, 0]
    assert live.any() and logits[live][..., own].isneginf().all()
    assert logits[live][..., ~own].isfinite().all()
