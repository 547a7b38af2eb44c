"""What must hold between two steps of the engine, whatever came before."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.prompts.kept import prefilled
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
    """Raises AssertionError unless each sequence shows, bit for bit, what decoding its text plainly
    in a sequence of its own would have left: those that run, and what others may go on from.

    Needs a free sequence, and checks nothing without."""
    if not engine.sequences.free:
        return
    spare = engine.sequences.free[0]
    engine.sequences.forget(spare)
    for place, sequence in enumerate(engine.sequences.order):
        if place < len(engine.running):
            _check_running(engine, place, spare)
        elif engine.sequences.held(sequence).rows:
            _check_kept(engine, sequence, spare)


def _check_running(engine: Engine, place: int, spare: int) -> None:
    text, here = engine.running[place], engine.schedule.running.first(place + 1)
    row = here.bonus[place:], here.position[place:], here.sequences[place:]
    found = _verify(engine, *row, here.moves[place:])
    read = text.request.prompt
    first = prefilled(engine.schedule.target.plan_prompt(len(read)))
    expected = _serial(engine, [*read, *text.output], first, spare)
    _check_same(found, expected, f"request {text.number} sees another text than its own")


def _check_kept(engine: Engine, sequence: int, spare: int) -> None:
    """What is written for it lies behind the rows that it keeps."""
    held = engine.sequences.held(sequence)
    found = _verify_one(engine, held.tokens, held.rows, sequence)
    expected = _serial(engine, held.tokens, held.prefilled, spare)
    _check_same(found, expected, f"sequence {sequence} keeps another text than its own")


def _check_same(found: Forward, expected: Forward, problem: str) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), problem


def _serial(engine: Engine, tokens: Sequence[int], first: int, sequence: int) -> Forward:
    """The forward of the last token, after the `first` rows of a prompt, of which there may be
    more than tokens, and one token after the other."""
    target, device = engine.schedule.target, engine.schedule.running.bonus.device
    if first:
        where = torch.tensor([sequence], device=device)
        run = PromptRun(target, None, [*tokens, *[0] * first][:first], where)
        while run.left:
            run.run_chunk()
    for position in range(min(first, len(tokens) - 1), len(tokens)):
        found = _verify_one(engine, tokens, position, sequence)
    return found


def _verify_one(engine: Engine, tokens: Sequence[int], position: int, sequence: int) -> Forward:
    """The forward of the token at a position of a text."""
    device = engine.schedule.running.bonus.device
    row = torch.tensor([[tokens[position]]], device=device), torch.tensor([position], device=device)
    where = torch.tensor([sequence], device=device)
    return _verify(engine, *row, where, no_moves(1, engine.schedule.target.tail, device))


def _verify(
    engine: Engine, token: Tensor, position: Tensor, sequence: Tensor, moves: Tensor
) -> Forward:
    target = engine.schedule.target
    return target.verify(chain_rows(token, position, sequence, target.tail), moves)
