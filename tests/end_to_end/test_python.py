"""The Python API over a real artifact: one text in every way, and memory that closing frees."""

import asyncio
import gc
from pathlib import Path

import pytest

from eagle_aot import AsyncRunner, GenerationParams, Result, Runner, SamplingParams, load_artifact
from eagle_aot.artifact import PROGRAM
from eagle_aot.common.errors import SettingError
from eagle_aot.common.memory import release_memory

QUESTIONS = (
    "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?",
    "If Mei owns 7 oranges and Ravi owns 8 times that number, how many oranges do both own?",
)
SAMPLING = SamplingParams(temperature=0.9, top_p=0.95, seed=11)
LENGTH = 24


def ids(results: list[Result]) -> list[list[int]]:
    return [result.token_ids for result in results]


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory and in no file."""
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("RssAnon:") + 1]) << 10


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLING], ids=["greedy", "sampled"])
def test_every_way_to_generate_gives_one_text(tiny: Runner, sampling: SamplingParams) -> None:
    alone = [tiny.generate(text, LENGTH, sampling_params=sampling) for text in QUESTIONS]
    stream = tiny.stream(QUESTIONS[0], LENGTH, sampling_params=sampling)
    assert "".join(stream) == alone[0].text
    assert stream.result is not None and stream.result.token_ids == alone[0].token_ids
    batch = tiny.generate_batch(QUESTIONS, LENGTH, sampling_params=sampling)
    assert ids(batch) == ids(alone)

    async def awaited() -> list[Result]:
        async with AsyncRunner(tiny) as runner:
            results = await runner.generate_batch(QUESTIONS, LENGTH, sampling_params=sampling)
            parts = runner.stream(QUESTIONS[1], LENGTH, sampling_params=sampling)
            assert "".join([part async for part in parts]) == alone[1].text
            return results

    assert ids(asyncio.run(awaited())) == ids(alone)
    assert tiny.generate(QUESTIONS[0], LENGTH, sampling_params=sampling).text == alone[0].text


def test_arguments_replace_sampling_params(tiny: Runner) -> None:
    params = GenerationParams(max_new_tokens=5, chain_len=2, temperature=0.9, seed=11)
    result = tiny.generate(QUESTIONS[0], sampling_params=params, seed=3)
    assert len(result.token_ids) == 5 and result.parameters.seed == 3
    assert (result.parameters.chain_len, result.parameters.temperature) == (2, 0.9)
    assert tiny.generate(QUESTIONS[0], 2, sampling_params=params).parameters.max_new_tokens == 2
    answers = tiny.generate_batch(QUESTIONS[:1], 5, n=2, sampling_params=SAMPLING)
    assert [answer.parameters.seed for answer in answers] == [11, 12]


def test_closing_frees_the_memory(tiny_artifact: Path) -> None:
    with load_artifact(tiny_artifact) as runner:
        text = runner.generate(QUESTIONS[0], 8).text
        open_stream = runner.stream(QUESTIONS[0], LENGTH)
        next(open_stream)
        opened = resident_bytes()
    size = (tiny_artifact / PROGRAM).stat().st_size
    assert opened - resident_bytes() > size
    assert list(open_stream) == [] and open_stream.result is None
    for use in (runner.generate, runner.encode, runner.stream):
        with pytest.raises(SettingError, match="is closed: open it with load_artifact again"):
            use(QUESTIONS[0])
    runner.close()  # again, which does nothing
    gc.collect()
    closed = resident_bytes()
    for _ in range(2):
        with load_artifact(tiny_artifact) as runner:
            assert runner.generate(QUESTIONS[0], 8).text == text
    release_memory()
    assert resident_bytes() - closed < size // 2, "nothing is left of an artifact each time"
