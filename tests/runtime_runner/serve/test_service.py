"""Prompts are read in parallel: a short one waits neither for long ones nor for images."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import Message, Prompt
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.serve.service import (
    MAX_FORMS,
    SHORT_TEXT,
    AnswerRequest,
    LocalService,
    ServedModel,
    check_forms,
    measured,
)

SECONDS = 5.0
IMAGE: Message = {
    "role": "user",
    "content": [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
    ],
}
LONG: Message = {"role": "user", "content": "a" * (SHORT_TEXT + 1)}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("word", (4, False)),
        ([1, 2, 3], (0, False)),
        ([LONG, {"role": "user", "content": "b"}], (SHORT_TEXT + 2, False)),
        ([IMAGE], (11, True)),
    ],
)
def test_length_and_images_of_prompts(prompt: Prompt, expected: tuple[int, bool]) -> None:
    assert measured(prompt) == expected


@pytest.mark.parametrize("slow", [LONG, IMAGE], ids=["long text", "image"])
def test_a_short_prompt_waits_for_no_other(slow: Message) -> None:
    """Of more slow ones than there are threads."""
    released, running, most = threading.Event(), list[int](), list[int]()

    def read(prompt: Prompt, *, raw: bool, template_values: object) -> Prompt:
        if prompt == [slow]:
            running.append(1)
            most.append(len(running))
            assert released.wait(SECONDS)
            running.pop()
        return prompt

    async def send() -> None:
        model = ServedModel.__new__(ServedModel)
        model._reader = SimpleNamespace(read=read)  # type: ignore[assignment]
        model._long_texts, model._images = asyncio.Semaphore(2), asyncio.Lock()
        waiting = [asyncio.create_task(model.read([slow], raw=False)) for _ in range(40)]
        await asyncio.sleep(0.01)
        short: object = await asyncio.wait_for(model.read("hi", raw=True), SECONDS)
        assert short == "hi"
        released.set()
        await asyncio.gather(*waiting)

    asyncio.run(send())
    assert len(most) == 40 and max(most) <= (2 if slow is LONG else 1)


def test_forms_are_read_outside_the_event_loop() -> None:
    """One request at a time; answers without a form do not wait."""
    released, running, most = threading.Event(), list[int](), list[int]()

    def generation(prompt: object, params: GenerationParams, callbacks: object) -> str:
        if params.structure is not None:
            running.append(1)
            most.append(len(running))
            assert released.wait(SECONDS)
            running.pop()
        return "generation"

    async def send() -> None:
        service: Any = LocalService.__new__(LocalService)
        tokenizer = SimpleNamespace(decode=None)
        service._runner = SimpleNamespace(tokenizer=tokenizer, generation=generation)
        service._forms, service.metrics, service.streams = asyncio.Semaphore(1), None, set()
        service.model = SimpleNamespace(spec=SimpleNamespace(request_timeout=SECONDS))
        service.worker = SimpleNamespace(
            outbox=None, submit=lambda *submissions: submissions, cancel=lambda *numbers: None
        )
        held = AnswerRequest(prompts=[(TokenizedPrompt((1,)), GenerationParams(regex="a"))] * 2)
        free = AnswerRequest(prompts=[(TokenizedPrompt((1,)), GenerationParams())])
        waiting = [asyncio.create_task(service.submit(held)) for _ in range(3)]
        await asyncio.sleep(0.01)
        stream = await asyncio.wait_for(service.submit(free), SECONDS)
        assert len(running) == 1
        released.set()
        for each in (stream, *await asyncio.gather(*waiting)):
            each.close()

    asyncio.run(send())
    assert most == [1] * 6


def test_the_forms_of_all_answers_are_limited() -> None:
    regex = "a" * (MAX_FORMS // 8)
    prompt, params = TokenizedPrompt((1,)), GenerationParams(regex=regex)
    check_forms([(prompt, params)] * 8)
    check_forms([(prompt, GenerationParams())] * 128)
    with pytest.raises(SettingError, match=f"9 answers with a form of {len(regex)} characters"):
        check_forms([(prompt, params)] * 9)
