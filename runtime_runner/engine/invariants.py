"""What must hold between two steps of the engine, whatever came before."""

import torch
from torch import Tensor

from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.engine.text import Text
from eagle_aot.runtime_runner.prompts.run import PromptRun
from eagle_aot.runtime_runner.rounds.step import chain_rows
from eagle_aot.runtime_runner.rounds.target import Forward, no_moves


def check_invariants(engine: Engine) -> None:
    """Raises AssertionError where host and device do not agree on who runs where.

    What the sequences hold is for `check_serial`.
    """
    running = engine.schedule.running
    assert running.sequences.tolist() == engine.sequences.order, "host and device differ on places"
    assert sorted(engine.sequences.order) == list(range(len(running))), "a sequence is lost"
    texts = [*engine.prompts, *engine.running]
    held = [text.sequence for text in texts if text.sequence is not None]
    assert sorted([*held, *engine.sequences.free]) == sorted(engine.sequences.order), (
        "a sequence is used twice, or by nobody"
    )
    assert running.sampler.begun == set(held), "a sequence's tokens are chosen for nobody"
    assert held[len(engine.prompts) :] == engine.sequences.order[: len(engine.running)], "a gap"
    assert all(text.sequence is None for text in engine.waiting), "a sequence is held in line"
    positions, bonus = running.position.tolist(), running.bonus.flatten().tolist()
    for place, text in enumerate(engine.running):
        assert positions[place] == text.position, "counts do not add up"
        assert bonus[place] == text.output[-1], "the token that comes next is another one"
        stats = text.stats
        assert stats.emitted == len(text.output) - 1 == stats.rounds + stats.accepted
    assert set(positions[len(engine.running) :]) <= {-1}, "a free sequence runs"


def check_all(engine: Engine) -> None:
    """Both, which takes each text's time again."""
    check_invariants(engine)
    check_serial(engine)


def check_serial(engine: Engine) -> None:
    """Raises AssertionError unless each running text sees, bit for bit, what decoding it plainly
    in a sequence of its own would have left. Needs a free sequence, and checks nothing without."""
    if not engine.sequences.free:
        return
    free = engine.sequences.free[0]
    engine.sequences.forget(free)
    running = engine.schedule.running
    for place, text in enumerate(engine.running):
        here = running.first(place + 1)
        row = here.bonus[place:], here.position[place:], here.sequences[place:]
        found = _verify(engine, *row, here.moves[place:])
        expected = _decoded(engine, text, free)
        same = (torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert all(same), f"request {text.number} sees another text than its own"


def _decoded(engine: Engine, text: Text, sequence: int) -> Forward:
    """The forward of the last token, after the prompt and one token after the other."""
    target, device = engine.schedule.target, engine.schedule.running.bonus.device
    where = torch.tensor([sequence], device=device)
    run = PromptRun(target, None, text.request.prompt, where)
    while run.left:
        run.run_chunk()
    first = len(text.request.prompt)
    for position, token in enumerate(text.output, start=first):
        row = torch.tensor([[token]], device=device), torch.tensor([position], device=device)
        found = _verify(engine, *row, where, no_moves(1, target.tail, device))
    return found


def _verify(
    engine: Engine, token: Tensor, position: Tensor, sequence: Tensor, moves: Tensor
) -> Forward:
    target = engine.schedule.target
    return target.verify(chain_rows(token, position, sequence, target.tail), moves)
