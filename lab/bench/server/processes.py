"""What runs in processes of its own: an engine without a server, and a server's clients.

Times are `time.perf_counter`'s, which all processes of a machine share.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from openai import OpenAI

from eagle_aot.common.errors import EagleError
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.engine import Failed
from eagle_aot.runtime_runner.frontend.generation import generate_in_order
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams

TIMEOUT = 600.0  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineAnswers:
    """Texts, seconds until their first tokens, and where the engine's time went."""

    texts: list[str]
    tokens: int
    first_token: list[float]
    seconds: float
    rounds: int
    rounds_seconds: float
    prompts_seconds: float


@cache
def opened(artifact: Path) -> Runner:
    """Open an artifact once in a process, and prepare it as the server does."""
    runner = load_artifact(artifact)
    runner.adaptive_schedule(trees=False)
    runner.warm_up()
    return runner


def answer_alone(
    artifact: Path, prompts: Sequence[str], batch_size: int, parameters: dict[str, Any]
) -> EngineAnswers:
    """Answer prompts `batch_size` in parallel, each with its index as the seed."""
    return answer(opened(artifact), prompts, batch_size, parameters)


def answer(
    runner: Runner, prompts: Sequence[str], batch_size: int, parameters: dict[str, Any]
) -> EngineAnswers:
    """Answer prompts with an opened artifact. Raises EagleError for a forward that fails."""
    launches = runner.engine.launches
    launches_before = vars(launches).copy()
    generations = (
        runner.generation(prompt, GenerationParams(seed=seed, **parameters))
        for seed, prompt in enumerate(prompts)
    )
    started, results = time.perf_counter(), []
    for result in generate_in_order(runner.engine, generations, batch_size):
        if isinstance(result, Failed):
            raise EagleError(result.error)
        results.append(result)
    return EngineAnswers(
        texts=[result.text or "" for result in results],
        tokens=sum(len(result.token_ids) for result in results),
        first_token=[result.stats.prefill_seconds for result in results],
        seconds=time.perf_counter() - started,
        rounds=launches.rounds - launches_before["rounds"],
        rounds_seconds=launches.rounds_seconds - launches_before["rounds_seconds"],
        prompts_seconds=launches.prompts_seconds - launches_before["prompts_seconds"],
    )


@cache
def client_of(url: str) -> tuple[OpenAI, str]:
    """Return a client of a server, and the name of its model."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT)
    (model,) = (model.id for model in client.models.list().data)
    return client, model


def send_requests(
    url: str, clients: Sequence[Sequence[dict[str, Any]]], options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Send each client's requests, one after the other, and return all answers.

    A request is a `number`, which is its seed, and a `prompt`.
    """
    with ThreadPoolExecutor(len(clients)) as pool:
        parts = pool.map(lambda requests: [send(url, options, **r) for r in requests], clients)
        return [answer for part in parts for answer in part]


def send(url: str, options: dict[str, Any], number: int, prompt: str) -> dict[str, Any]:
    """Send one request; return its text, and when its parts arrived."""
    client, model = client_of(url)
    request = {**options, "model": model, "messages": [{"role": "user", "content": prompt}]}
    text, tokens, times = "", 0, list[float]()
    started = time.perf_counter()
    chunks = client.chat.completions.create(
        **request, seed=number, stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        tokens = chunk.usage.completion_tokens if chunk.usage else 0
        for choice in chunk.choices:
            if choice.delta.content:
                text += choice.delta.content
                times.append(time.perf_counter())
    return {"number": number, "text": text, "tokens": tokens, "started": started, "times": times,
            "ended": time.perf_counter()}  # fmt: skip
