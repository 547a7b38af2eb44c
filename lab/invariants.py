"""What must hold between two steps of the engine, whatever came before."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import Forward, no_moves
from eagle_aot.runtime_runner.engine.cached_prefix import prefilled
from eagle_aot.runtime_runner.engine.engine import Engine


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
    """Raises AssertionError unless each sequence shows, bit for bit, what its text would have left
    in a sequence of its own: those that run, decoded plainly, those in their prompts, and of the
    free ones, which others may go on from, the one that was used last. Texts with pictures are left
    out.

    Needs a free sequence, and checks nothing without."""
    sequences, running = engine.sequences, len(engine.running)
    if not sequences.free:
        return
    spare, *before_last = sequences.free[:-1] or sequences.free
    sequences.forget(spare)
    for place in range(running):
        if not engine.running[place].request.pictures:
            _check_running(engine, place, spare)
    for sequence in sequences.order[running:]:
        held = sequences.held(sequence)
        if sequence not in before_last and held.rows and min(held.tokens) >= 0:
            _check_held(engine, sequence, spare)


def _check_running(engine: Engine, place: int, spare: int) -> None:
    text, here = engine.running[place], engine.schedule.running.first(place + 1)
    row = here.bonus[place:], here.position[place:], here.sequences[place:]
    found = _verify(engine, *row, here.moves[place:])
    prompt = text.request.prompt
    _read(engine, prompt, prefilled(engine.schedule.target.plan_prompt(len(prompt))), spare)
    whole = [*prompt, *text.output]
    for position in range(len(prompt), len(whole)):
        expected = _decode(engine, whole, position, spare)
    _check_same(found, expected, f"request {text.number} sees another text than its own")


def _check_held(engine: Engine, sequence: int, spare: int) -> None:
    """What is written for it lies behind the rows that are held."""
    held = engine.sequences.held(sequence)
    found = _decode(engine, held.tokens, held.rows, sequence)
    _read(engine, held.tokens[: held.rows], held.prefilled, spare)
    expected = _decode(engine, held.tokens, held.rows, spare)
    _check_same(found, expected, f"sequence {sequence} holds another text than it seems to")


def _check_same(found: Forward, expected: Forward, problem: str) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), problem


def _read(engine: Engine, tokens: Sequence[int], first: int, sequence: int) -> None:
    """Run tokens from the beginning, the `first` by `prefill`, of which there may be fewer."""
    target, device = engine.schedule.target, engine.schedule.running.bonus.device
    where = torch.tensor([sequence], device=device)
    text = torch.tensor([[*tokens, *[0] * first]], device=device)
    chunks = target.plan_prompt(first) if first else []
    rest = range(first, len(tokens), target.tail)
    chunks += [Chunk(at, min(at + target.tail, len(tokens)), True) for at in rest]
    for chunk in chunks:
        positions = torch.arange(chunk.start, chunk.stop, device=device)
        target.run_prompt(text[:, chunk.start : chunk.stop], positions, where, chunk)


def _decode(engine: Engine, tokens: Sequence[int], position: int, sequence: int) -> Forward:
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
