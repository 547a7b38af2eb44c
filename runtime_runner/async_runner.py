"""An opened artifact for coroutines: requests in parallel, on the engine's own thread."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Self

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Result, successful
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.prompt_reader import AnyPrompt
from eagle_aot.runtime_runner.images.reader import Source
from eagle_aot.runtime_runner.runner import Runner, check_single
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.serve.worker import RequestOutcome, Worker


class AsyncTextIterator:
    """The parts of one request's text. `aclose` before the end cancels the request.

    `result` is that of `AsyncRunner.generate` once the last part was taken, and None before.
    """

    def __init__(self, parts: AsyncGenerator[str | Result, None]) -> None:
        self._parts = parts  # ends with the result; does not refer to this, so dropping closes it
        self.result: Result | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        part = await anext(self._parts)
        if isinstance(part, str):
            return part
        self.result = part
        raise StopAsyncIteration

    async def aclose(self) -> None:
        await self._parts.aclose()


class AsyncRunner:
    """Runs the requests of coroutines on one artifact in parallel, as many at a time as it has
    sequences; the others wait. An async context manager, which closes it.

    All coroutines are of one event loop. A coroutine that is cancelled ends its request.
    """

    def __init__(self, runner: Runner) -> None:
        """Start the engine's thread. Until `close`, `runner` itself generates nothing. Raises
        SettingError while it does."""
        if runner.engine.busy or runner.engine.has_thread:
            raise SettingError(f"{runner.directory}: is generating: end that first")
        self._runner = runner
        self._worker: Worker | None = Worker(runner.engine, sys.maxsize)
        self._worker.start()
        self._reading = asyncio.Lock()  # the reader of images is not safe for two threads

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the thread after its current step. Requests that have not ended raise SettingError.

        The runner stays open, and may generate again."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        await asyncio.to_thread(worker.close)
        worker.end_all(SettingError("the AsyncRunner was closed before the end of the request"))
        if not self._runner.engine.has_thread:  # else a step that takes very long still runs
            self._runner.engine.abandon()

    async def generate(
        self,
        prompt: AnyPrompt,
        max_new_tokens: int | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        images: Sequence[Source] = (),
        image_tokens: int | None = None,
        **options: Any,
    ) -> Result:
        """Continue a prompt. Arguments, result and errors are those of `Runner.generate`."""
        params = GenerationParams.of(sampling_params, options | {"max_new_tokens": max_new_tokens})
        return await self._answer(prompt, params, images, image_tokens)

    async def generate_batch(
        self,
        prompts: Iterable[AnyPrompt],
        max_new_tokens: int | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        **options: Any,
    ) -> list[Result]:
        """Continue prompts in parallel. Returns `n` results for each, in the order of the prompts.
        Where one fails, the others are cancelled. Raises as `generate` does."""
        params = GenerationParams.of(sampling_params, options | {"max_new_tokens": max_new_tokens})
        answers = [
            asyncio.ensure_future(self._answer(prompt, each))
            for prompt in prompts
            for each in params.answers()
        ]
        try:
            return await asyncio.gather(*answers)
        finally:
            for answer in answers:
                answer.cancel()

    def stream(
        self,
        prompt: AnyPrompt,
        max_new_tokens: int | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        images: Sequence[Source] = (),
        image_tokens: int | None = None,
        **options: Any,
    ) -> AsyncTextIterator:
        """Continue a prompt, and return an iterator over the parts of its text as `Runner.stream`
        does. Its `result` is that of `generate`."""
        params = GenerationParams.of(sampling_params, options | {"max_new_tokens": max_new_tokens})
        return AsyncTextIterator(self._parts(prompt, params, images, image_tokens))

    async def _parts(
        self,
        prompt: AnyPrompt,
        params: GenerationParams,
        images: Sequence[Source],
        image_tokens: int | None,
    ) -> AsyncGenerator[str | Result, None]:
        """Yield the parts of the text of the one answer to a prompt, then its result."""
        parts = asyncio.Queue[str | None]()
        answer = asyncio.ensure_future(
            self._answer(prompt, params, images, image_tokens, parts.put_nowait)
        )
        answer.add_done_callback(lambda done: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            yield await answer
        finally:
            answer.cancel()

    async def _answer(
        self,
        prompt: AnyPrompt,
        params: GenerationParams,
        images: Sequence[Source] = (),
        image_tokens: int | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Result:
        """Return the one answer to a prompt; `on_text` is called in the event loop."""
        check_single(params)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[RequestOutcome] = loop.create_future()

        def end(outcome: RequestOutcome) -> None:
            if not ended.done():  # it is where the coroutine was cancelled
                ended.set_result(outcome)

        async with self._reading:
            tokenized = await asyncio.to_thread(
                self._runner.read, prompt, params, images, image_tokens
            )
            if (worker := self._worker) is None:
                raise SettingError("the AsyncRunner is closed")
            outbox = worker.outbox
            callbacks = Callbacks(
                on_text=None if on_text is None else lambda text: outbox.add(loop, on_text, text)
            )
            generation = await asyncio.to_thread(
                self._runner.generation, tokenized, params.drawn(), callbacks
            )
            (number,) = worker.submit((generation, lambda outcome: outbox.add(loop, end, outcome)))
        try:
            return successful(await ended)
        except asyncio.CancelledError:
            worker.cancel(number)
            raise
