"""What must hold between two steps of the engine, whatever happened before."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import Forward, no_moves
from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.engine.sequence_pool import prefilled


def check_invariants(engine: Engine) -> None:
    """Raise AssertionError unless host and device agree on which request has which sequence.

    `check_serial` compares what the sequences hold.
    """
    running = engine.schedule.batch
    assert running.sequences.tolist() == engine.sequence_pool.order, "host and device differ"
    assert sorted(engine.sequence_pool.order) == list(range(len(running))), "a sequence is lost"
    texts = [*engine.prefilling, *engine.running]
    used = [text.sequence for text in texts if text.sequence is not None]
    assert sorted([*used, *engine.sequence_pool.free]) == sorted(engine.sequence_pool.order), (
        "a sequence is used twice, or neither used nor free"
    )
    assert running.sampler.active == set(used), "tokens are sampled for a free sequence"
    assert used[len(engine.prefilling) :] == engine.sequence_pool.order[: len(engine.running)], (
        "a gap"
    )
    assert all(text.sequence is None for text in engine.waiting), "a waiting request has a sequence"
    positions, bonus = running.position.tolist(), running.bonus.flatten().tolist()
    for index, text in enumerate(engine.running):
        assert positions[index] == text.position, "counts do not add up"
        assert bonus[index] == text.output[-1], "the device has another bonus token"
        stats = text.stats
        assert stats.emitted == len(text.output) - 1 == stats.rounds + stats.accepted
    assert set(positions[len(engine.running) :]) <= {-1}, "a free sequence runs"


def check_all(engine: Engine) -> None:
    """Check invariants and caches, which takes as long again as each text took."""
    check_invariants(engine)
    check_serial(engine)


def check_serial(engine: Engine) -> None:
    """Raise AssertionError unless sequences hold, bit for bit, what serial decoding would leave.

    Checked are running requests, requests in their prompts, and of the free sequences, whose rows
    may be reused, the one that was used last. Requests with images are left out. Without a free
    sequence to decode in, or memory for it, nothing is checked.
    """
    sequences, running = engine.sequence_pool, len(engine.running)
    if not sequences.free:
        return
    spare, *used_earlier = sequences.free[:-1] or sequences.free
    sequences.forget(spare)
    longest = max(sequences.cached(sequence).rows + 1 for sequence in sequences.order)
    if not sequences.hold(spare, longest):
        return
    for index in range(running):
        if not engine.running[index].request.images:
            _check_running(engine, index, spare)
    for sequence in sequences.order[running:]:
        contents = sequences.cached(sequence)
        if sequence not in used_earlier and contents.rows and min(contents.tokens) >= 0:
            _check_contents(engine, sequence, spare)


def _check_running(engine: Engine, index: int, spare: int) -> None:
    text, batch = engine.running[index], engine.schedule.batch.narrow(index + 1)
    forward = _verify(
        engine, batch.bonus[index:], batch.position[index:], batch.sequences[index:],
        batch.moves[index:],
    )  # fmt: skip
    prompt = text.request.prompt
    _prefill(engine, prompt, prefilled(engine.schedule.target.plan_prompt(len(prompt))), spare)
    tokens = [*prompt, *text.output]
    for position in range(len(prompt), len(tokens)):
        expected = _decode(engine, tokens, position, spare)
    _check_same(forward, expected, f"request {text.request_id} sees another text than its own")


def _check_contents(engine: Engine, sequence: int, spare: int) -> None:
    """Compare the row after the cached ones, which overwrites none of them."""
    contents = engine.sequence_pool.cached(sequence)
    forward = _decode(engine, contents.tokens, contents.rows, sequence)
    _prefill(engine, contents.tokens[: contents.rows], contents.prefilled, spare)
    expected = _decode(engine, contents.tokens, contents.rows, spare)
    _check_same(forward, expected, f"sequence {sequence} holds another text than recorded")


def _check_same(forward: Forward, expected: Forward, problem: str) -> None:
    assert all(torch.equal(a, b) for a, b in zip(forward, expected, strict=True)), problem


def _prefill(engine: Engine, tokens: Sequence[int], first: int, sequence: int) -> None:
    """Run `tokens` from position 0: the `first`, or as many as there are, by `prefill`, the rest
    by `target_verify`."""
    target, device = engine.schedule.target, engine.schedule.batch.bonus.device
    sequences = torch.tensor([sequence], device=device)
    text = torch.tensor([[*tokens, *[0] * first]], device=device)
    plan = target.plan_prompt(first) if first else []
    chunks = [chunk for chunk in plan if chunk.start < len(tokens)]
    rest = range(first, len(tokens), target.tail_length)
    chunks += [Chunk(at, min(at + target.tail_length, len(tokens)), True) for at in rest]
    for chunk in chunks:
        positions = torch.arange(chunk.start, chunk.stop, device=device)
        target.run_prompt(text[:, chunk.start : chunk.stop], positions, sequences, chunk)


def _decode(engine: Engine, tokens: Sequence[int], position: int, sequence: int) -> Forward:
    """Run the token at a position of a text alone."""
    device = engine.schedule.batch.bonus.device
    return _verify(
        engine,
        torch.tensor([[tokens[position]]], device=device),
        torch.tensor([position], device=device),
        torch.tensor([sequence], device=device),
        no_moves(1, engine.schedule.target.tail_length, device),
    )


def _verify(
    engine: Engine, token: Tensor, position: Tensor, sequence: Tensor, moves: Tensor
) -> Forward:
    target = engine.schedule.target
    return target.verify(chain_rows(token, position, sequence, target.tail_length), moves)
