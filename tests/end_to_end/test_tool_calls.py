"""Tool calls and their outputs, turn after turn, through OpenAI's own client.

The model is too small to call tools by itself: grammars make it.
"""

from typing import Any

import openai
from pydantic import BaseModel, ConfigDict, Field

from eagle_aot.runtime_runner.serve.tool_calls.hermes import hermes_messages
from support.server import Server

QUESTION = "Ada has 27 marbles. Marco has 6 times as many."
DRAFTS: list[dict[str, Any]] = [{"speculate": False}, {"chain_len": 2}, {"tree": "2,2,4"}]


class Factors(BaseModel):
    """Multiplies two numbers."""

    model_config = ConfigDict(extra="forbid")
    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


NO_PARAMETERS = {"type": "object", "properties": {}}
TOOLS = [openai.pydantic_function_tool(Factors, name="multiply")]


def ask(server: Server, messages: list[Any], **more: Any) -> Any:
    parameters = {"temperature": 0, "tools": TOOLS, "parallel_tool_calls": False} | more
    completions: Any = server.client.chat.completions
    return completions.parse(model="tiny", messages=messages, **parameters).choices[0]


def test_a_loop_of_calls_and_outputs(server: Server) -> None:
    """Each call parses into the function's arguments; its output is part of the next prompt."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(3):
        choice = ask(server, messages, tool_choice="required")
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        factors = call.function.parsed_arguments
        assert call.function.name == "multiply" and isinstance(factors, Factors)
        output = str(factors.a * factors.b)
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": output}]
    create: Any = server.client.chat.completions.create
    last = create(model="tiny", messages=messages, tools=TOOLS, temperature=0, max_tokens=8)
    message = last.choices[0].message
    assert message.content and not message.tool_calls


def test_a_stream_has_the_same_call_with_any_drafts(server: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    completions: Any = server.client.chat.completions
    choice = {"type": "function", "function": {"name": "multiply"}}
    (whole,) = ask(server, messages, tool_choice=choice).message.tool_calls
    for drafts in DRAFTS:
        with completions.stream(
            model="tiny", messages=messages, tools=TOOLS, tool_choice=choice, temperature=0,
            extra_body=drafts,
        ) as stream:  # fmt: skip
            (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
        assert call.function == whole.function and call.id != whole.id


def test_text_is_free_until_a_call_begins(server: Server) -> None:
    """It is the text of the same prompt without tools."""
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    declared = {"type": "function", "function": {"name": "stop", "parameters": NO_PARAMETERS}}
    tools: list[Any] = [declared]
    parameters: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 60}
    create: Any = server.client.chat.completions.create
    free: list[Any] = hermes_messages(turns, tools)
    expected = create(messages=free, **parameters).choices[0]
    choice = create(messages=turns, tools=tools, **parameters).choices[0]
    assert choice.message.content == expected.message.content
    assert (choice.finish_reason, choice.message.tool_calls) == (expected.finish_reason, None)
