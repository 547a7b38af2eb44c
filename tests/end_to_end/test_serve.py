"""`eagle-serve`, through OpenAI's own client and by plain HTTP."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from click.testing import CliRunner
from pydantic import BaseModel, ConfigDict, Field

from eagle_aot.lab.checks.server.soak import main as soak
from eagle_aot.runtime_runner import Runner
from support.server import Server, served

QUESTION = "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?"
OTHERS = [
    "Mei owns 7 oranges and Ravi owns 8 times that number. How many oranges do both own?",
    "Lena drives 2 hours at 26 km an hour. How far does she drive?",
    "Omar has 12 boxes with 9 pens each. How many pens does he have?",
    "Ada has 3 marbles. Marco has 5 times as many. How many marbles do they have together?",
]

PLAIN = {"speculate": False}


def chat(server: Server, text: str = QUESTION, **more: Any) -> Any:
    parameters = {"temperature": 0} | more
    return server.client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": text}], **parameters
    )


def test_there_is_one_model(server: Server) -> None:
    assert server.model == "tiny"
    assert server.client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="model 'gpt': not here, this is 'tiny'"):
        server.client.models.retrieve("gpt")


def test_a_chat_has_the_text_of_the_runner(server: Server, tiny: Runner) -> None:
    expected = tiny.generate(QUESTION, 200)
    answer = chat(server, extra_body={"chain_len": tiny.constants.chain_len})
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert choice.finish_reason == expected.finish_reason == "stop"
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert answer.usage.completion_tokens == len(expected.token_ids)
    speculation = answer.usage.speculation
    assert speculation["accepted"] == expected.stats.accepted
    assert speculation["tau"] == pytest.approx(expected.stats.tau)


def test_a_stream_has_the_same_text_in_parts(server: Server) -> None:
    whole = chat(server)
    *chunks, last = chat(server, stream=True, stream_options={"include_usage": True})
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", "")
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert len(texts) > 5 and "".join(texts) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks)
    assert {chunk.id for chunk in [*chunks, last]} == {last.id}
    assert last.system_fingerprint == whole.system_fingerprint


@pytest.mark.parametrize(
    "drafts", [{"speculate": False}, {"chain_len": 1}, {"chain_len": "auto"}, {"tree": "4,4,16"}]
)
def test_drafts_change_no_token(server: Server, drafts: dict[str, Any]) -> None:
    expected = chat(server).choices[0].message.content
    assert chat(server, extra_body=drafts).choices[0].message.content == expected


class Count(BaseModel):
    """What an answer is parsed into."""

    model_config = ConfigDict(extra="forbid")
    who: str = Field(max_length=8)
    count: int = Field(ge=0, le=999)


def test_the_official_client_parses_an_answer(server: Server, tiny: Runner) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = server.client.chat.completions.parse(
        model="tiny", messages=messages, response_format=Count, temperature=0
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Count) and answer.choices[0].finish_reason == "stop"
    same = tiny.generate(QUESTION, 200, json_schema=Count.model_json_schema())
    assert answer.choices[0].message.content == same.text


def test_a_stream_has_the_form_of_its_request(server: Server) -> None:
    form = {"structured_outputs": {"choice": ["seven", "nine"]}}
    chunks = chat(server, stream=True, extra_body=form)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) in ("seven", "nine")
    refused = {"structured_outputs": {"regex": "("}}
    with pytest.raises(openai.BadRequestError, match="regex: "):
        chat(server, extra_body=refused)


def test_a_seed_repeats_a_sampled_text(server: Server, tiny: Runner) -> None:
    how: dict[str, Any] = {"temperature": 4.0, "top_p": 0.9, "presence_penalty": 0.5}
    first = chat(server, **how, max_tokens=60)
    seed = first.choices[0].seed
    (choice,) = chat(server, **how, max_tokens=60, seed=seed, extra_body=PLAIN).choices
    assert choice.message.content == first.choices[0].message.content
    assert choice.message.content == tiny.generate(QUESTION, 60, seed=seed, **how).text
    whole = chat(server, **how, max_tokens=60, n=3, seed=seed)
    several = whole.choices
    assert whole.usage.prompt_tokens == first.usage.prompt_tokens, "it has one prompt"
    assert several[0].message.content == choice.message.content
    assert len({choice.message.content for choice in several}) == 3


def test_a_stream_counts_its_tokens_in_each_chunk(server: Server) -> None:
    """As guidellm requests it; and with the ids of prompt and tokens, as vLLM returns them."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    more = {"return_token_ids": True, "no_such": 1}
    whole = chat(server, extra_body=more | {"stream_options": options})
    *chunks, last = chat(server, stream=True, stream_options=options, extra_body=more)
    expected = whole.usage.completion_tokens
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, expected)
    assert {c.usage.prompt_tokens for c in [*chunks, last]} == {whole.usage.prompt_tokens}
    ids = [token for c in chunks for token in c.choices[0].model_extra.get("token_ids", ())]
    assert ids == whole.choices[0].token_ids and len(ids) == last.usage.completion_tokens
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    assert chunks[0].warnings == whole.warnings == ["no_such: not known here, ignored"]
    assert not any("warnings" in chunk.model_extra for chunk in chunks[1:])


def test_null_counts_as_absent(server: Server) -> None:
    """In parameters, and in an answer that the official client sends back."""
    null: Any = dict.fromkeys(("temperature", "top_p", "n", "stream", "logit_bias", "stop"))
    turn: Any = {"role": "user", "content": QUESTION}
    complete = partial(server.client.chat.completions.create, model="tiny", max_tokens=4, seed=3)
    message = complete(messages=[turn]).choices[0].message
    assert complete(messages=[turn], **null).choices[0].message == message
    turns: Any = [turn, message.model_dump(), turn]
    assert complete(messages=turns).choices[0].message.content


def test_a_stream_has_each_choices_seed_at_its_end(server: Server) -> None:
    """At both endpoints choices have the same fields as in a whole response, and no others."""
    how: dict[str, Any] = {"temperature": 1.0, "seed": 40, "n": 2, "max_tokens": 4}
    prompted = {"model": "tiny", "prompt": "Ada has 27"}
    complete: Any = partial(server.client.completions.create, **prompted, **how)
    requests: list[Any] = [partial(chat, server, **how), complete]
    for request in requests:
        whole, ends = request(), {}
        for chunk in request(stream=True):
            (part,) = chunk.choices
            assert "usage" not in chunk.model_fields_set and "seed" not in chunk.model_extra
            if part.finish_reason:
                ends[part.index] = (part.finish_reason, part.seed)
            else:
                assert "seed" not in part.model_extra
        assert ends == {
            i: (choice.finish_reason, choice.seed) for i, choice in enumerate(whole.choices)
        }
        assert [choice.seed for choice in whole.choices] == [40, 41]


def test_completions_of_text_and_of_ids(server: Server, tiny: Runner) -> None:
    prompt = "Ada has 27"
    expected = tiny.generate(prompt, 8, raw_prompt=True)
    create: Any = partial(server.client.completions.create, temperature=0)
    ids = tiny.encode(prompt, raw=True)
    for form in (prompt, [prompt], ids, [ids]):
        answer = create(model="tiny", prompt=form, max_tokens=8)
        assert [choice.text for choice in answer.choices] == [expected.text]
        assert answer.choices[0].finish_reason == "length"
    several = create(model="tiny", prompt=[prompt, ""], max_tokens=8)
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == expected.text
    texts = {0: "", 1: ""}
    for chunk in create(model="tiny", prompt=[prompt, ""], max_tokens=8, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {choice.index: choice.text for choice in several.choices}


def test_a_stop_text_ends_an_answer(server: Server) -> None:
    text = chat(server).choices[0].message.content
    stop = text[12:16]
    answer = chat(server, stop=[stop, "no such text"])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("change", "line"), [
    ({"mirostat": 2}, "mirostat: cannot be done here"),
    ({"messages": []}, "messages: Expected array of length >= 1"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages.0.content"),
    ({"messages": [{"role": "assistant", "content": "a"}]}, "last one must follow another"),
    ({"max_tokens": 0}, "max_tokens 0: must be at least 1"),
    ({"temperature": -1}, "temperature -1"),
    ({"temperature": "NaN"}, "temperature"),
    ({"temperature": True}, "temperature: Expected float, got bool"),
    ({"top_p": "0.5"}, "top_p: Expected float, got str"),
    ({"messages": None}, "messages: Field required"),
    ({"logit_bias": {"99999": 1}}, "logit_bias: token 99999 is outside the vocabulary"),
    ({"n": 1000}, "n 1000: must be a whole number from 1 to 128"),
    ({"max_tokens": "8"}, "max_tokens: Expected int, got str"),
    ({"chain_len": 99}, "chain length 99"),
    ({"top_logprobs": 2}, "top_logprobs 2: needs logprobs: true"),
    ({"logprobs": 2}, "logprobs: Expected bool, got int"),
    (
        {"logprobs": True, "top_logprobs": 21},
        "top_logprobs: Expected int <= 20",
    ),
    ({"logprobs": True, "logprobs_of": "head"}, "logprobs_of: Invalid enum value 'head'"),
    ({"tree": "1,99,3"}, "tree 1,99,3: top-k must be 1 to 16"),
    ({"tree": "/etc/passwd"}, "tree: expected DEPTH,TOPK,NODES like 6,8,32"),
    ({"stop_token_ids": [10**9]}, "1000000000"),
    ({"messages": [{"role": "user", "content": "word " * 5000}]}, "context"),
])  # fmt: skip
def test_a_wrong_request_is_refused_in_one_line(
    server: Server, change: dict[str, Any], line: str
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}]} | change
    answer = server.http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error"
    assert line in error["message"] and "\n" not in error["message"]


def test_bodies_that_are_no_json_objects_are_refused(server: Server) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"", b"{", b"[]", b"null", b"\xff", b'{"model": NaN', b"[" * 5000):
        answer = server.http.post("/v1/chat/completions", content=content, headers=headers)
        assert answer.status_code == 400 and answer.json()["error"]["message"], content
    large = server.http.post("/v1/chat/completions", content=b"x" * (9 << 20), headers=headers)
    assert large.status_code == 413
    assert server.http.get("/v1/nothing").status_code == 404
    other = server.http.get("/v1/completions")
    assert other.status_code == 405 and other.headers["allow"] == "POST"


def test_a_client_that_disconnects_frees_its_cache(server: Server) -> None:
    body = {
        "model": "tiny",
        "prompt": QUESTION,
        "max_tokens": 900,
        "stream": True,
        "ignore_eos": True,
    }
    before = server.metric('eagle_requests_total{outcome="cancelled"}')
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        server.http.post("/v1/completions", json=body | {"stream": False}, timeout=0.1)
    ends = time.monotonic() + 10
    while server.metric("eagle_requests_in_progress") and time.monotonic() < ends:
        time.sleep(0.05)
    assert server.metric("eagle_requests_in_progress") == 0
    assert server.metric('eagle_requests_total{outcome="cancelled"}') == before + 2


def test_metrics_add_up(server: Server) -> None:
    name = "eagle_generated_tokens_total"
    before = server.metric(name)
    tokens = chat(server).usage.completion_tokens
    assert server.metric(name) == before + tokens


def test_requests_need_a_key(tiny_artifact: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\n\nsecond\nzwölf\n", encoding="utf-8")
    with served(tiny_artifact, "--api-key-file", str(keys), "--no-warm-up", key="second") as server:
        assert server.client.models.list().data
        for wrong in ("third", "firs", "first2"):
            headers = {"Authorization": f"Bearer {wrong}"}
            answer = server.http.get("/v1/models", headers=headers)
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_key"
        non_ascii = {b"Authorization": "Bearer zwölf".encode()}
        assert server.http.get("/v1/models", headers=non_ascii).status_code == 200
        assert server.http.get("/health").status_code == 200
        check_shutdown(server)


def check_shutdown(server: Server) -> None:
    """Stop a server while it generates: the text is finished, no other request is accepted, and the
    server ends."""
    model = Path(server.client.models.list().data[0].id).name
    running = server.client.completions.create(
        model=model, prompt=QUESTION, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    events = iter(running)
    next(events)
    server.stop()
    time.sleep(0.3)
    with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
        server.client.completions.create(model=model, prompt="?", max_tokens=1)
    assert [event.choices[0].finish_reason for event in events][-1] == "length"
    assert server.process.wait(20) == 0
    logged = [line for line in server.process.stderr or "" if line.startswith("{")]
    lines = [json.loads(line) for line in logged]
    assert lines and all(line["level"] != "error" for line in lines)


def test_many_clients_get_the_texts_of_single_requests(
    server: Server, tiny_artifact: Path, tmp_path: Path
) -> None:
    """Some clients vanish, read slowly or send half a request."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in OTHERS))
    command = [tiny_artifact, prompts, "--url", server.url, "--max-new-tokens", 24, "--json"]
    more = ["--clients", 8, "--minutes", 0.05, "--chaos"]
    result = CliRunner().invoke(soak, [str(word) for word in command + more])
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["problems"] == []
    assert report["requests"]["as alone"] > 8 and report["server"]["late"]["memory"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 2])
def test_a_second_signal_ends_running_answers(tiny_artifact: Path, replicas: int) -> None:
    options = ("--replicas", str(replicas)) if replicas else ("--no-warm-up",)
    with served(tiny_artifact, *options) as server, ThreadPoolExecutor(1) as pool:
        limits = {"max_tokens": 900, "ignore_eos": True}
        body = {"model": server.model, "prompt": QUESTION, **limits}
        with server.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            whole = pool.submit(server.http.post, "/v1/completions", json=body)
            time.sleep(0.5)  # it has begun, or waits
            server.stop(signal.SIGINT)
            time.sleep(0.3)
            server.stop(signal.SIGINT)
            assert '"code": "shutting_down"' in "".join(lines)
        response = whole.result()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
        assert server.process.wait(20) == 0
        assert server.process.stderr is not None
        logged = server.process.stderr.read()
        assert "Traceback" not in logged and '"error"' not in logged


def test_cached_tokens_reveal_no_prompt_of_another_salt(server: Server) -> None:
    """Each word of a prompt is guessed if all before are known; with its salt each one is found."""
    words = ["amber", "birch", "cedar", "delta", "ember", "fjord"]

    def cached(text: str, salt: str) -> int:
        body = {"prompt": text, "model": "tiny", "max_tokens": 1, "cache_salt": salt}
        answer = server.http.post("/v1/completions", json=body).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    def found(victim: str, attacker: str) -> int:
        count = 0
        for i in range(8):  # no cache is empty, which would be taken first
            cached(f"{i} " * 20, attacker)
        for known in range(len(words)):
            rows = []
            for guess in (words[known], "wrong"):
                cached(" ".join(words), victim)
                rows.append(cached(" ".join([*words[:known], guess, "x x x"]), attacker))
            count += rows[0] > rows[1]
        return count

    assert found("a", "a") == len(words)
    assert found("b", "c") == 0
