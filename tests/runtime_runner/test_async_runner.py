"""Requests of coroutines on one engine: their texts, cancellation, and the end of the runner."""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.runtime_runner.async_runner import AsyncRunner
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.schedule import OneRound
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Generation, generate
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.stream import TextStream
from eagle_aot.runtime_runner.runner import Runner
from support.runner.toy import TAIL, ToyTarget, plain_text

SEED, ENDLESS = 7, 10**6
PROMPT = [1, 2, 3]


def letters(ids: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in ids)


class ToyRunner:
    """The part of a runner that an AsyncRunner uses, over a toy engine with one sequence."""

    directory = Path("toy")

    def __init__(self) -> None:
        round_ = Round(ToyTarget(SEED, 8, 4), None, 0, BatchState(range(1), TAIL, "cpu"))
        self.engine = Engine(OneRound(round_))

    def read(self, prompt: list[int], params: GenerationParams, *images: Any) -> list[int]:
        if not prompt:
            raise PromptError("empty")
        return prompt

    def generation(
        self, prompt: list[int], params: GenerationParams, callbacks: Callbacks
    ) -> Generation:
        text = TextStream(letters, (), callbacks.on_text)
        limits = Limits(
            max_new_tokens=params.max_new_tokens, stop_ids=frozenset(), is_stop=text.add
        )
        request = Request(prompt=tuple(prompt), limits=limits, chain_len=0)
        return Generation(
            request=request, parameters=params, text=text, decode=letters, callbacks=callbacks
        )


def run(toy: ToyRunner, use: "Any") -> Any:
    """Run a coroutine function with an AsyncRunner, which is closed afterwards."""

    async def main() -> Any:
        async with AsyncRunner(cast(Runner, toy)) as runner:
            return await use(runner)

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_requests_in_parallel_have_their_own_texts() -> None:
    prompts = [[1, 2, 3], [4, 5], [6]]

    async def use(runner: AsyncRunner) -> None:
        results = await runner.generate_batch(prompts, 6, n=2)
        expected = [plain_text(prompt, SEED, 6) for prompt in prompts for _ in range(2)]
        assert [result.token_ids for result in results] == expected
        stream = runner.stream(PROMPT, 6)
        parts = [part async for part in stream]
        assert "".join(parts) == letters(plain_text(PROMPT, SEED, 6)) and len(parts) > 1
        assert stream.result is not None
        assert stream.result.token_ids == plain_text(PROMPT, SEED, 6)
        assert stream.result.finish_reason == "length"
        assert [part async for part in stream] == []

    run(ToyRunner(), use)


@pytest.mark.parametrize("way", ["cancel", "break", "drop"])
def test_a_cancelled_request_leaves_its_sequence_to_the_next(way: str) -> None:
    async def use(runner: AsyncRunner) -> None:
        stream = runner.stream(PROMPT, ENDLESS)
        assert await anext(stream)
        if way == "drop":
            del stream
        elif way == "break":
            await stream.aclose()
            assert stream.result is None
        else:
            endless = asyncio.ensure_future(runner.generate(PROMPT, ENDLESS))
            await asyncio.sleep(0.01)
            endless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await endless
            await stream.aclose()
        assert (await runner.generate([4, 5], 6)).token_ids == plain_text([4, 5], SEED, 6)

    run(ToyRunner(), use)


def test_one_bad_prompt_ends_a_batch_with_its_error() -> None:
    async def use(runner: AsyncRunner) -> None:
        with pytest.raises(PromptError, match="empty"):
            await runner.generate_batch([PROMPT, [], PROMPT], ENDLESS)
        with pytest.raises(SettingError, match="n 2: this gives one answer"):
            await runner.generate(PROMPT, 6, n=2)
        assert (await runner.generate(PROMPT, 6)).text == letters(plain_text(PROMPT, SEED, 6))

    run(ToyRunner(), use)


def test_closing_ends_requests_and_gives_the_engine_back() -> None:
    toy = ToyRunner()

    async def use(runner: AsyncRunner) -> "asyncio.Future[Any]":
        with pytest.raises(SettingError, match="is generating"):
            AsyncRunner(cast(Runner, toy))
        with pytest.raises(SettingError, match="an AsyncRunner runs this artifact"):
            generate(toy.engine, toy.generation(PROMPT, GenerationParams(), Callbacks()))
        request: Coroutine[Any, Any, Any] = runner.generate(PROMPT, ENDLESS)
        endless = asyncio.ensure_future(request)
        await asyncio.sleep(0.01)
        await runner.close()
        with pytest.raises(SettingError, match="closed before the end of the request"):
            await endless
        with pytest.raises(SettingError, match="the AsyncRunner is closed"):
            await runner.generate(PROMPT, 6)
        return endless

    assert run(toy, use).done() and not toy.engine.busy
    generation = toy.generation(PROMPT, GenerationParams(max_new_tokens=6), Callbacks())
    assert generate(toy.engine, generation).token_ids == plain_text(PROMPT, SEED, 6)
