"""Speed of answers of given forms on real text: what drafts give, and those that a form forces.

\b
    eagle-export --target-model smollm2-135m --cpu-weights int8 --output-dir smollm2-int8
    python -m eagle_aot.lab.bench.forms smollm2-int8

Each prompt is answered plainly, and with each chain with and without the drafts that the form
forces, in turn; the fastest of several repeats counts. All ways have the same tokens.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from rich.table import Table
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import user
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.spec import BenchSpec, table_of
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Result, generate
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.sampling.constraint import Constraint, DraftRows
from eagle_aot.runtime_runner.serve.tool_calls.chat_format import HERMES, CallPolicy, ChatFormat
from eagle_aot.runtime_runner.serve.tool_calls.protocol import Function

CITIES = "Paris", "Tokyo", "Cairo", "Lima", "Oslo", "Rome", "Delhi", "Quito"
QUESTIONS = (
    "What can I see in {} in two days?", "Tell me about the food of {}.",
    "Why do people like to live in {}?", "What is the weather of {} like in May?",
)  # fmt: skip
RECORDS = (
    "Describe {} as JSON with its country, its population, a description and its sights.",
    "Write a record of the city {}: country, population, a description, sights.",
)
CALLS = (
    "What is the weather in {} tomorrow?", "Find a hotel in {} for two guests and three nights.",
    "Remind me in 20 minutes to call my friend in {}.",
)  # fmt: skip
TEXT = {"type": "string"}
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "population": {"type": "integer"},
        "description": {"type": "string", "maxLength": 120},
        "sights": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 3},
        "is_coastal": {"type": "boolean"},
    },
    "required": ["name", "country", "population", "description", "sights", "is_coastal"],
    "additionalProperties": False,
}


def function(name: str, description: str, **properties: Any) -> dict[str, Any]:
    """Return a tool whose parameters are all required."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    described = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": described}


TOOLS = [
    function("get_weather_forecast", "Returns the weather.", city=TEXT,
             day={"enum": ["today", "tomorrow"]}, temperature_unit={"enum": ["celsius", "kelvin"]}),
    function("find_hotel", "Finds a hotel.", city=TEXT, number_of_guests={"type": "integer"},
             number_of_nights={"type": "integer"}),
    function("set_reminder", "Reminds the user.", text=TEXT, delay_in_minutes={"type": "integer"}),
]  # fmt: skip


class FormsSpec(BenchSpec, kw_only=True, frozen=True):
    """What to measure."""

    count: Annotated[int, Option("Prompts of each form.", least=1, most=16)] = 8
    chain_lens: Annotated[
        tuple[int, ...], Option("Draft tokens a round.", metavar="K,...", commas=True)
    ] = (2, 4, 7)
    max_new_tokens: Annotated[int, Option("Tokens of each answer.", least=2)] = 96
    repeats: Annotated[int, Option("Times of an answer; the least one counts.", least=1)] = 3


class WithoutForcedDrafts(Constraint):
    """A constraint that forces no drafts, but allows the same tokens."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint

    def advance(self, token: int) -> None:
        self._constraint.advance(token)

    def restart(self) -> None:
        self._constraint.restart()

    def look_ahead(self, bitmask: Tensor | None) -> list[int]:
        self._constraint.look_ahead(bitmask)
        return []

    def repair(self, rows: DraftRows) -> bool:
        return False

    def fill(self, rows: DraftRows, bitmask: Tensor) -> None:
        self._constraint.fill(rows, bitmask)


@dataclasses.dataclass(frozen=True, slots=True)
class TimedAnswer:
    """An answer, and the seconds of its rounds by the clock and of this process."""

    result: Result
    seconds: float
    cpu_seconds: float


@dataclasses.dataclass(slots=True)
class WayTotals:
    """Totals of one way to answer all prompts of a form."""

    tokens: int = 0
    rounds: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens per round."""
        return self.tokens / self.rounds

    def add(self, answers: Sequence[TimedAnswer]) -> None:
        """Count an answer that was repeated, with its least times."""
        stats = answers[0].result.stats
        self.tokens += stats.emitted
        self.rounds += stats.rounds
        self.seconds += min(each.seconds for each in answers)
        self.cpu_seconds += min(each.cpu_seconds for each in answers)


Way = tuple[int, bool]
"""A chain length, 0 for plain decoding, and whether drafts may be forced."""
Question = tuple[list[int], GenerationParams]


@spec_command(FormsSpec)
def main(spec: FormsSpec) -> None:
    """Time free text, JSON and tool calls of ARTIFACT with and without drafts."""
    runner = spec.load()
    totals = {
        form: measure(runner, prompts, spec) for form, prompts in questions(runner, spec).items()
    }
    lines = [
        {"form": form, "chain_len": chain_len, "forced": forced, **dataclasses.asdict(way)}
        for form, ways in totals.items()
        for (chain_len, forced), way in ways.items()
    ]
    spec.show(f"forms of answers of {spec.name}", {"lines": lines}, table(totals))


def questions(runner: Runner, spec: FormsSpec) -> dict[str, list[Question]]:
    """Return the prompts of each form, with the parameters of their answers."""
    chat = ChatFormat(runner.tokenizer, HERMES)
    functions = [tool["function"] for tool in TOOLS]
    calls = [Function(each["name"], each["parameters"], strict=True) for each in functions]
    policy = CallPolicy(calls, required=True, several=False)
    free = GenerationParams(max_new_tokens=spec.max_new_tokens)
    record = GenerationParams(max_new_tokens=spec.max_new_tokens, json_schema=CITY)

    def called(text: str) -> Question:
        ids = runner.encode(chat.messages([user(text)], TOOLS))
        return ids, chat.parameters(free, ids, policy)

    return {
        "free text": [(runner.encode(text), free) for text in texts(QUESTIONS, spec.count)],
        "JSON schema": [(runner.encode(text), record) for text in texts(RECORDS, spec.count)],
        "tool call": [called(text) for text in texts(CALLS, spec.count)],
    }


def texts(templates: Sequence[str], count: int) -> Iterator[str]:
    """Yield texts about the cities, each template in turn."""
    for number in range(count):
        shift, city = divmod(number, len(CITIES))
        yield templates[(city + shift) % len(templates)].format(CITIES[city])


def measure(
    runner: Runner, questions: Sequence[Question], spec: FormsSpec
) -> Mapping[Way, WayTotals]:
    """Answer prompts in every way. Raises SettingError where the tokens of two ways differ."""
    is_free = questions[0][1].structure is None
    choices = (True,) if is_free else (False, True)
    drafted = [(k, forced) for k in spec.chain_lens for forced in choices]
    ways: dict[Way, WayTotals] = {way: WayTotals() for way in [(0, False), *drafted]}
    for prompt, params in questions:
        answers = [{way: answer(runner, prompt, params, way) for way in ways}]
        if len({tuple(each.result.token_ids) for each in answers[0].values()}) > 1:
            raise SettingError("the tokens of two ways differ")
        answers += [
            {way: answer(runner, prompt, params, way) for way in ways} for _ in range(spec.repeats)
        ]
        for way, total in ways.items():
            total.add([each[way] for each in answers[1:]])
    return ways


def answer(runner: Runner, prompt: list[int], params: GenerationParams, way: Way) -> TimedAnswer:
    """Answer a prompt in one way. Its time begins with the first token, which the prompt gives."""
    chain_len, forced = way
    first: list[tuple[float, float]] = []

    def on_tokens(tokens: list[int]) -> None:
        if not first:
            first.append((time.perf_counter(), time.process_time()))

    params = msgspec.structs.replace(params, speculate=chain_len > 0, chain_len=chain_len or None)
    generation = runner.generation(prompt, params, Callbacks(on_tokens))
    constraint = generation.request.constraint
    if constraint is not None and not forced:
        without = WithoutForcedDrafts(constraint)
        request = dataclasses.replace(generation.request, constraint=without)
        generation = dataclasses.replace(generation, request=request)
    result = generate(runner.engine, generation)
    seconds, cpu_seconds = first[0]
    return TimedAnswer(result, time.perf_counter() - seconds, time.process_time() - cpu_seconds)


def table(totals: Mapping[str, Mapping[Way, WayTotals]]) -> Table:
    """Return all figures; CPU seconds are those of this process."""
    lines = table_of(
        "form", "drafts", "forced ones", "tokens", "tau", "tokens/s", "tokens/CPU s", "of plain"
    )
    for form, ways in totals.items():
        plain = ways[0, False]
        for (chain_len, forced), way in ways.items():
            has_choice = chain_len and (chain_len, False) in ways
            speed = way.tokens / way.cpu_seconds
            lines.add_row(
                form,
                str(chain_len) if chain_len else "none",
                ("with" if forced else "without") if has_choice else "",
                str(way.tokens),
                f"{way.tau:.2f}",
                f"{way.tokens / way.seconds:.1f}",
                f"{speed:.1f}",
                f"{speed * plain.cpu_seconds / plain.tokens:.2f}",
            )
        lines.add_section()
    return lines


if __name__ == "__main__":
    main()
