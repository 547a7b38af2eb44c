"""/v1/responses, through OpenAI's own client."""

from typing import Any, cast

import openai
import pytest
from fastapi.testclient import TestClient
from openai.types.responses import Response
from pydantic import BaseModel

from eagle_aot.common.prompts import Prompt
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.serve.answer_stream import AnswerDelta, AnswerStream, RequestFailed
from eagle_aot.runtime_runner.serve.service import AnswerRequest
from support.chat_templates import format_tokenizer
from support.full_service import MODEL, FullService

TEXTS = ["", "Ada ", "has 3."]
USAGE = (1, 3, 4)
STOP: Any = {"type": "function", "name": "stop", "parameters": None, "strict": False}
CALL = {"type": "function_call", "call_id": "c", "name": "stop", "arguments": "{}"}


class Factors(BaseModel):
    """Multiplies two numbers."""

    a: int
    b: int


MULTIPLY: Any = openai.pydantic_function_tool(Factors, name="multiply")
TOOLS: list[Any] = [{"type": "function", **MULTIPLY["function"]}, STOP]
CALLING = [
    "<think>Hm", ".</think>Let me see.\n<tool_call>\n{", '"name": "multiply", "arguments": {"a": 2',
    ', "b": 3}}\n</tool_call>\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>',
]  # fmt: skip


class AnsweringService(FullService):
    """Answers every request with `TEXTS`, and with a failure at the end if there is one."""

    error: Exception | None = None
    reason = "stop"
    texts = TEXTS

    def __init__(self) -> None:
        tokenizer, self.prompts = format_tokenizer("hermes"), list[Any]()
        super().__init__(tokenizer=tokenizer)
        self.model.fingerprint, self.model.tokenizer = "eagle-1", tokenizer

    async def read(
        self, prompt: Prompt, *, raw: bool, template_values: object = None
    ) -> TokenizedPrompt:
        self.prompts.append(prompt)
        return TokenizedPrompt((1,))

    async def submit(self, request: AnswerRequest) -> AnswerStream:
        self.requests.append(request)
        stream = AnswerStream(1, 60.0, self.metrics)
        ((_, params),) = request.prompts
        for token, text in enumerate(self.texts):
            stream.put(0, AnswerDelta(text, {}, (), (token,)))
        result = Result(
            prompt_tokens=1, cached_tokens=0, token_ids=[0, 1, 2], logprobs=None,
            prompt_logprobs=None, text="".join(self.texts), finish_reason=self.reason, executor="",
            drafter=None, parameters=params, stats=Stats(chain_len=4), times=None,
        )  # fmt: skip
        stream.put(0, self.error or result)
        return stream


def client_of(service: FullService) -> openai.OpenAI:
    http = TestClient(service.app, "http://localhost/v1", raise_server_exceptions=False)
    return openai.OpenAI(api_key="none", base_url="http://localhost/v1", http_client=http)


def test_a_response_is_that_of_a_chat() -> None:
    service = AnsweringService()
    turns: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "Tom.", "annotations": []}]},
        {"role": "user", "content": "And?"},
    ]  # fmt: skip
    with client_of(service) as client:
        answer = client.responses.create(
            model=MODEL, input=turns, instructions="Be brief.", max_output_tokens=9, temperature=0.5
        )
        plain = client.chat.completions.create
        system: Any = {"role": "system", "content": "Be brief."}
        others: Any = [{"role": t["role"], "content": t["content"]} for t in turns]
        plain(model=MODEL, messages=[system, *others], max_tokens=9, temperature=0.5)
    assert answer.output_text == "Ada has 3." and answer.status == "completed"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (
        USAGE
    )
    assert (answer.temperature, answer.max_output_tokens) == (0.5, 9)
    response, chat = service.requests
    assert service.prompts[0] == service.prompts[1] and len(service.prompts[0]) == 4
    assert response.prompts[0][1].max_new_tokens == chat.prompts[0][1].max_new_tokens == 9


@pytest.mark.parametrize(("reason", "status"), [("stop", "completed"), ("context", "incomplete")])
def test_a_stream_has_the_same_response(reason: str, status: str) -> None:
    service = AnsweringService()
    service.reason = reason
    with client_of(service) as client:
        whole = client.responses.create(model=MODEL, input="Who?", extra_body={"x": 1})
        with client.responses.stream(model=MODEL, input="Who?", extra_body={"x": 1}) as stream:
            events: list[Any] = [*stream]
    final = events[-1].response
    assert [event.type for event in events] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        f"response.{status}",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == [*range(10)]
    assert final.output_text == whole.output_text == "Ada has 3." and final.status == whole.status
    assert final.usage == whole.usage and final.incomplete_details == whole.incomplete_details
    line = ["x: not known here, ignored"]
    assert cast(Any, whole).warnings == cast(Any, final).warnings == line


def test_reasoning_is_an_item_of_its_own() -> None:
    service = AnsweringService()
    service.texts = ["<think>Hm", ".</think>", "has 3."]
    with client_of(service) as client:
        whole = client.responses.create(model=MODEL, input="Who?")
        stream = client.responses.create(model=MODEL, input="Who?", stream=True)
        (last,) = (event for event in stream if event.type == "response.completed")
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert [item.type for item in last.response.output] == ["reasoning", "message"]
    for response in (whole, last.response):
        thought: Any = response.output[0]
        assert thought.content[0].text == "Hm." and response.output_text == "has 3."


def test_calls_are_items_and_their_outputs_go_back() -> None:
    """Three turns: each sends the output so far and what the functions returned."""
    service = AnsweringService()
    service.texts, turns = CALLING, list[Any]([{"role": "user", "content": "How many?"}])
    with client_of(service) as client:
        for number in range(1, 4):
            answer = client.responses.parse(model=MODEL, input=turns, tools=[MULTIPLY, STOP])
            thought, message, *calls = answer.output
            assert (thought.type, message.type) == ("reasoning", "message")
            first, second = [call for call in calls if call.type == "function_call"]
            assert first.parsed_arguments == Factors(a=2, b=3) and first.status == "completed"
            assert (second.name, second.arguments) == ("stop", "{}")
            turns += answer.output
            turns += [
                {"type": "function_call_output", "call_id": call.call_id, "output": str(number)}
                for call in (first, second)
            ]
            assert "warnings" not in (answer.model_extra or {})
        client.responses.create(model=MODEL, input=turns, tools=TOOLS)
    roles = [message["role"] for message in service.prompts[-1]]
    assert roles == ["user", *["assistant", "tool", "tool"] * 3]
    turn, output = service.prompts[-1][1:3]
    assert (turn["content"], turn["reasoning_content"]) == ("Let me see.", "Hm.")
    assert [call["function"]["arguments"] for call in turn["tool_calls"]] == [{"a": 2, "b": 3}, {}]
    assert output["content"] == "1" and output["tool_call_id"] == turn["tool_calls"][0]["id"]


def test_the_items_of_one_turn_are_one_message() -> None:
    service = AnsweringService()
    said = {"role": "assistant", "content": "Hi."}
    output = {"type": "function_call_output", "call_id": "c"}
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    turns: Any = [
        said, said, CALL, {**output, "output": parts}, CALL, CALL, {**output, "output": "c"},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"}, thought, said, thought,
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "And?"},
    ]  # fmt: skip
    with client_of(service) as client:
        client.responses.create(model=MODEL, input=turns)
    (messages,) = service.prompts
    found = [(m["role"], m["content"], len(m.get("tool_calls", ()))) for m in messages]
    assert found == [
        ("assistant", "Hi.", 0), ("assistant", "Hi.", 1), ("tool", "ab", 0), ("assistant", "", 2),
        ("tool", "c", 0), ("assistant", "Hi.", 0), ("assistant", "", 0), ("system", "Be brief.", 0),
        ("user", "And?", 0),
    ]  # fmt: skip
    assert [m.get("reasoning_content") for m in messages[5:7]] == ["Hm.", "Hm."]


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_stream_has_the_same_calls(reason: str) -> None:
    service = AnsweringService()
    service.texts, service.reason = CALLING, reason
    if reason == "length":  # in the first arguments
        service.texts = CALLING[:3]
    with client_of(service) as client:
        whole = client.responses.create(model=MODEL, input="Who?", tools=TOOLS)
        stream = client.responses.create(model=MODEL, input="Who?", tools=TOOLS, stream=True)
        events: list[Any] = [*stream]
    for event in events:
        type(event).model_validate(event.to_dict(), strict=True)
    Response.model_validate(whole.to_dict(), strict=True)
    for kept, final in zip(whole.output, events[-1].response.output, strict=True):
        changed = {"id": None, "call_id": None}
        assert kept.to_dict() | changed == final.to_dict() | changed
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output
    calls = [item for item in done if item.type == "function_call"]
    for call in calls:
        parts = [e for e in events if getattr(e, "item_id", None) == call.id]
        kinds = [event.type.removeprefix("response.function_call_arguments.") for event in parts]
        assert set(kinds[:-1]) == {"delta"} and kinds[-1] == "done"
        assert "".join(event.delta for event in parts[:-1]) == parts[-1].arguments == call.arguments
    ends = {"stop": ["completed", "completed"], "length": ["incomplete"]}
    assert [call.status for call in calls] == ends[reason]
    assert events[-1].type == f"response.{ends[reason][-1]}"
    assert [event.sequence_number for event in events] == [*range(len(events))]


NAMED = {"type": "function", "name": "stop"}
OLD_NAMED = {"type": "function", "function": {"name": "stop"}}
CHOICES: dict[str, tuple[Any, Any]] = {
    "stop": (NAMED, OLD_NAMED),
    "allowed_tools": (
        {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OLD_NAMED]}},
    ),
}


@pytest.mark.parametrize("choice", ["auto", "none", "required", *CHOICES])
def test_a_choice_of_tools_is_that_of_a_chat(choice: str) -> None:
    service = AnsweringService()
    named, old = CHOICES.get(choice, (choice, choice))
    old_tools: Any = [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
        for tool in TOOLS
    ]
    with client_of(service) as client:
        answer = client.responses.create(
            model=MODEL, input="Who?", tools=TOOLS, tool_choice=named, parallel_tool_calls=False
        )
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Who?"}], tools=old_tools,
            tool_choice=old, parallel_tool_calls=False,
        )  # fmt: skip
    first, second = (request.prompts[0][1].structure for request in service.requests)
    assert first == second and (first is None) is (choice == "none")
    assert answer.parallel_tool_calls is False
    assert [tool.type for tool in answer.tools] == ["function", "function"]
    echoed = answer.tool_choice
    assert (echoed if isinstance(echoed, str) else echoed.to_dict()) == named


def test_a_failure_is_the_last_event(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the traceback of one that the server is to blame for."""
    service = AnsweringService()
    with client_of(service) as client:
        for error, code in ((TimeoutError, "timeout"), (RequestFailed, "request_failed")):
            service.error = error("it failed")
            *_, last = client.responses.create(model=MODEL, input="Who?", stream=True)
            assert (last.type, last.code, last.message) == ("error", code, "it failed")  # type: ignore[union-attr]
            with pytest.raises(openai.InternalServerError, match="it failed"):
                client.responses.create(model=MODEL, input="Who?")
    (record,) = (record for record in caplog.records if record.exc_info)
    assert record.getMessage() == "a stream failed"


def test_a_schema_is_the_form_of_a_response() -> None:
    service = AnsweringService()
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": schema}}
    with client_of(service) as client:
        answer = client.responses.create(model=MODEL, input="Who?", text=form)
        chat: Any = client.chat.completions.create
        old = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        chat(model=MODEL, messages=[{"role": "user", "content": "Who?"}], response_format=old)
    first, second = (request.prompts[0][1].structure for request in service.requests)
    assert first == second is not None and cast(Any, answer.text).format.type == "json_schema"


@pytest.mark.parametrize(("body", "line"), [
    ({"input": []}, "input: Expected array of length >= 1"),
    ({}, "input: Field required"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type: Invalid value"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input: there is no text"),
    ({"input": [{"role": "user", "content": "a"}, CALL]}, "messages: no tool's turn follows"),
    ({"input": "a", "tools": [{"type": "web_search"}]}, "tools.0.type: Invalid value 'web_search'"),
    ({"input": "a", "tool_choice": "required"}, "tool_choice required: there are no tools"),
    ({"input": "a", "tools": [STOP], "tool_choice": {"type": "function", "name": "x"}},
     "tool_choice: no tool has the name x"),
    ({"input": "a", "tools": [STOP], "tool_choice": {"type": "allowed_tools", "mode": "auto",
      "tools": [{"type": "mcp", "server_label": "a"}]}}, "tool_choice.tools.0.type: Invalid value"),
    ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id: cannot be done"),
    ({"input": "a", "n": 2}, "n: a response has one answer"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused(body: dict[str, Any], line: str) -> None:
    with TestClient(AnsweringService().app, base_url="http://localhost") as client:
        answer = client.post("/v1/responses", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(line)
