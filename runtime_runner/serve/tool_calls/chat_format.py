"""How one model writes tool calls and reasoning, found in its chat template."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from eagle_aot.common.errors import EagleError, PromptError, SettingError
from eagle_aot.common.prompts import Message, MessageCall, user
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.sampling.constraint import one_of
from eagle_aot.runtime_runner.serve.tool_calls.gemma4 import Gemma4Format
from eagle_aot.runtime_runner.serve.tool_calls.grammar import GrammarWriter
from eagle_aot.runtime_runner.serve.tool_calls.hermes import HermesFormat, hermes_messages
from eagle_aot.runtime_runner.serve.tool_calls.llama3 import Llama3Format
from eagle_aot.runtime_runner.serve.tool_calls.parser import AnswerParser, ReasoningMarkers
from eagle_aot.runtime_runner.serve.tool_calls.protocol import Function, ToolCallFormat
from eagle_aot.runtime_runner.serve.tool_calls.qwen3_xml import Qwen3XmlFormat
from eagle_aot.runtime_runner.serve.tool_calls.schemas import is_deep

HERMES = "hermes"
FORMATS: Mapping[str, ToolCallFormat] = {
    "gemma4": Gemma4Format(),
    "qwen3_xml": Qwen3XmlFormat(),
    HERMES: HermesFormat(),
    "llama3_json": Llama3Format(),
}
"""The formats by vLLM's names, in the order in which a template's own call is compared."""
REASONING = (
    ReasoningMarkers("<|channel>thought\n", "<channel|>"),
    ReasoningMarkers("<think>", "</think>"),
)
CHANNEL = "<|channel>"
"""The part of Gemma 4's marker that is a token."""
PROMPT_END = 32
"""Tokens of a prompt among which the begin of a reasoning is looked for."""
NO_TOOLS = (
    "tools: the chat template of this model knows none: start with --tool-call-parser hermes, "
    "which describes them in the system's text"
)
EXAMPLE_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Returns the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
EXAMPLE_CALL: MessageCall = {
    "id": "call00000",  # Mistral's templates accept nine characters alone
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Rome"}},
}
EXAMPLE_CHAT: Sequence[Message] = (
    user("How is the weather in Rome?"),
    {"role": "assistant", "content": "", "tool_calls": [EXAMPLE_CALL]},
    {"role": "tool", "content": "Sunny.", "tool_call_id": "call00000"},
)


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """The functions that an answer may call, whether it must call one, and whether `several`."""

    functions: Sequence[Function]
    required: bool = False
    several: bool = True


class ChatFormat:
    """Writes conversations with tools for one model's template, and reads the model's answers."""

    def __init__(self, tokenizer: Tokenizer, name: str | None = None) -> None:
        """`name` is a format of `FORMATS`, None for that of the template. Raises SettingError for
        one that the template does not go with."""
        self._tokenizer = tokenizer
        template = tokenizer.chat_template or ""
        self._knows_tools = "get_weather" in self._example(EXAMPLE_CHAT[:1], [EXAMPLE_TOOL])
        text = self._example(EXAMPLE_CHAT)
        own = next((each for each in FORMATS.values() if each.writes(text)), None)
        self._calls = own if name is None else FORMATS[name]
        if name not in (None, HERMES) and not self._knows_tools:
            raise SettingError(f"--tool-call-parser {name}: the chat template knows no tools")
        self._reasoning = next((each for each in REASONING if each.is_in(template)), None)
        self._writes_tools = name == HERMES and not self._knows_tools

    def messages(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> list[Message]:
        """Return a conversation as the template takes it. Raises PromptError for tools, or their
        calls, that neither the template nor the format writes."""
        if self._writes_tools:
            return hermes_messages(messages, tools)
        has_calls = any(m["role"] == "tool" or m.get("tool_calls") for m in messages)
        if (tools or has_calls) and not self._knows_tools:
            raise PromptError(NO_TOOLS)
        if tools and self._calls is None:
            raise PromptError(
                "tools: the chat template writes calls in a form that is not read here: start with "
                f"--tool-call-parser {'|'.join(FORMATS)}"
            )
        return [*messages]

    def values(
        self,
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        effort: str | None,
    ) -> dict[str, object]:
        """Return the values that the template gets besides messages: tools, what a reasoning
        `effort` means to it, and a request's own `options`, which replace the others."""
        template, values = self._tokenizer.chat_template or "", dict[str, object]()
        if tools and not self._writes_tools:
            values["tools"] = [*tools]
        if effort is not None and "reasoning_effort" in template:
            values["reasoning_effort"] = effort
        if effort is not None and "enable_thinking" in template:
            values["enable_thinking"] = effort != "none"
        return {**values, **options}

    def parser(self, prompt: Sequence[int], policy: CallPolicy | None) -> AnswerParser:
        """Return what reads an answer to a prompt."""
        state = self._reasoning_state(prompt)
        return AnswerParser(
            None if policy is None else self._calls,
            () if policy is None else policy.functions,
            None if state == "over" else self._reasoning,
            in_reasoning=state == "open",
        )

    def reasoning_tokens(self, ids: Sequence[int]) -> int:
        """Return how many tokens of an answer are reasoning with its markers, 0 where that cannot
        be seen from the tokens."""
        end = None if self._reasoning is None else self._added(self._reasoning.end)
        return ids.index(end) + 1 if end in ids else 0

    def parameters(
        self, params: GenerationParams, prompt: Sequence[int], policy: CallPolicy | None
    ) -> GenerationParams:
        """Return the parameters of an answer to a prompt: the form that is requested begins after
        the reasoning, and calls have the form of their functions. Raises SettingError."""
        state = self._reasoning_state(prompt)
        changes: dict[str, Any] = {"visible_ids": self._visible_ids(policy)}
        if policy is not None or (params.structure is not None and state in ("open", "possible")):
            changes |= dict.fromkeys(("json_schema", "regex", "choices"))
            changes["grammar"] = self._grammar(params.structure, state, policy)
        return msgspec.structs.replace(params, **changes)

    def _grammar(
        self, structure: tuple[str, Any] | None, state: str, policy: CallPolicy | None
    ) -> str:
        tokenizer, markers = self._tokenizer, self._markers(policy)
        writer = GrammarWriter(markers, tokenizer.added_ids, tokenizer.special_ids)
        answer = self._answer(writer, structure, policy)
        grammar = writer.grammar(f"{self._reasoning_rule(writer, state)} {answer}")
        if structure is None or structure[0] != "grammar":
            return grammar
        form = {"name": "form", "lark_grammar": structure[1]}
        return json.dumps({"grammars": [{"lark_grammar": grammar}, form]})

    def _answer(
        self,
        writer: GrammarWriter,
        structure: tuple[str, Any] | None,
        policy: CallPolicy | None,
    ) -> str:
        """Return the expression of what follows the reasoning."""
        form = "" if structure is None else form_rule(writer, *structure)
        if policy is None:
            return form
        calls = self._calls
        assert calls is not None, "`messages` refuses tools without a format"
        call = calls.rule(writer, policy.functions)
        if policy.several and calls.several:
            other = writer.literal(calls.separator + calls.begin)
            call = writer.rule(f"{call} ({other} {call})*")
        forced = f"{writer.literal(calls.begin)} {call}"
        if policy.required:
            return forced
        if form:
            return f"({form} | {forced})"
        free = writer.any_tokens if calls.follows_text else writer.any_tokens_or
        return free(calls.begin, call)

    def _reasoning_rule(self, writer: GrammarWriter, state: str) -> str:
        if self._reasoning is None or state not in ("open", "possible"):
            return ""
        end = f"{writer.until(self._reasoning.end)} /\\n{{0,2}}/"
        if state == "open":
            return end
        return f"({writer.literal(self._reasoning.begin)} {end})?"

    def _reasoning_state(
        self, prompt: Sequence[int]
    ) -> Literal["none", "open", "over", "possible"]:
        """Return whether an answer to a prompt may begin with reasoning, continues one, or follows
        one."""
        if self._reasoning is None:
            return "none"
        text = self._tokenizer.decode(prompt[-PROMPT_END:], skip_special_tokens=False).rstrip()
        if text.endswith(self._reasoning.begin.rstrip()):
            return "open"
        return "over" if text.endswith(self._reasoning.end) else "possible"

    def _markers(self, policy: CallPolicy | None) -> list[str]:
        reasoning = self._reasoning
        markers = [] if reasoning is None else [CHANNEL, reasoning.begin, reasoning.end]
        return [*markers, *(self._calls.markers if policy and self._calls else ())]

    def _visible_ids(self, policy: CallPolicy | None) -> tuple[int, ...]:
        ids = {self._added(marker) for marker in self._markers(policy)}
        return tuple(sorted(self._tokenizer.special_ids.intersection(ids)))

    def _added(self, marker: str) -> int | None:
        return self._tokenizer.added_ids.get(marker)

    def _example(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the text of a conversation, empty where the template cannot write it."""
        values = {"tools": tools} if tools else {}
        with suppress(EagleError):
            return self._tokenizer.render(messages, False, values)
        return ""


def form_rule(writer: GrammarWriter, name: str, value: Any) -> str:
    """Add the rule of a form, a field of `SamplingParams`. Returns its name."""
    if name == "json_schema":
        return writer.json(read_schema(value), strict=True)
    if name == "regex":
        return writer.rule(f"/{escaped(value)}/")
    if name == "choices":
        writer.define("CHOICE", one_of(value))
        return "CHOICE"
    return "@form"


def read_schema(value: str | dict[str, Any]) -> dict[str, Any]:
    """Return a schema. Raises SettingError for text that is none, and for one that is nested too
    deeply."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise SettingError(f"json_schema: not JSON ({error})") from error
    if not isinstance(schema, dict) or is_deep(schema):
        raise SettingError("json_schema: no object, or nested too deeply")
    return schema


def escaped(regex: str) -> str:
    """Return a regular expression for a place between slashes."""
    parts, is_escaped = list[str](), False
    for character in regex:
        if character == "/" and not is_escaped:
            parts.append("\\")
        parts.append("\\n" if character == "\n" else character)
        is_escaped = character == "\\" and not is_escaped
    return "".join(parts)
