"""Log probabilities through OpenAI's own client."""

from collections.abc import Sequence
from typing import Any

import openai
import pytest

from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from support.server import Server

QUESTION = "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?"
HOT: dict[str, Any] = {"temperature": 3.0, "seed": 5}


def ask(server: Server, **more: Any) -> Any:
    asked = {"temperature": 0, "logprobs": True} | more
    messages: Any = [{"role": "user", "content": QUESTION}]
    return server.client.chat.completions.create(model="tiny", messages=messages, **asked)


def complete(server: Server, prompt: Any, **more: Any) -> Any:
    asked = {"temperature": 0, "max_tokens": 12, "logprobs": 2} | more
    return server.client.completions.create(model="tiny", prompt=prompt, **asked)


def pairs(content: list[Any]) -> list[tuple[float, list[float]]]:
    """Of each token of a chat."""
    return [(one.logprob, [top.logprob for top in one.top_logprobs]) for one in content]


def spelled(content: list[Any]) -> str:
    """Its text; special tokens have no bytes."""
    return b"".join(bytes(one.bytes) for one in content if one.bytes is not None).decode()


def told(runner: Runner, prompt: str, count: int, **asked: Any) -> list[TokenLogprobs]:
    result = runner.generate(prompt, count, **asked)
    assert result.logprobs is not None
    return result.logprobs


def scored(runner: Runner, prompt: Any, **asked: Any) -> list[TokenLogprobs]:
    result = runner.generate(prompt, 0, **asked)
    assert result.prompt_logprobs is not None
    return result.prompt_logprobs


@pytest.mark.parametrize("how", [{}, HOT, HOT | {"max_tokens": 9}])
def test_a_chat_is_told_what_the_runner_tells(
    server: Server, int4_head: Runner, how: dict[str, Any]
) -> None:
    """Of every token of the text, whose bytes are the text, and not of the id that ends it."""
    answer = ask(server, **{"max_tokens": 64, "top_logprobs": 3} | how)
    choice, asked = answer.choices[0], dict(how)
    expected = told(int4_head, QUESTION, asked.pop("max_tokens", 64), logprobs=3, **asked)
    if choice.finish_reason == "stop":
        expected = expected[:-1]
    content = choice.logprobs.content
    assert pairs(content) == [(one.logprob, [lp for _, lp in one.top]) for one in expected]
    assert spelled(content) == choice.message.content
    likeliest = [one.token == one.top_logprobs[0].token for one in content]
    assert all(likeliest) != bool(how)


@pytest.mark.parametrize(
    "how", [{}, HOT | {"n": 2, "max_tokens": 20}, {"stop": ["marbles."]}, {"stop": ["arco h"]}]
)
def test_a_stream_tells_the_same_in_parts(server: Server, how: dict[str, Any]) -> None:
    """Each with the text that it belongs to, and none that a stop text held back."""
    whole = ask(server, top_logprobs=2, **how)
    texts, content = [""] * len(whole.choices), [list[Any]() for _ in whole.choices]
    for chunk in ask(server, top_logprobs=2, stream=True, **how):
        (part,) = chunk.choices
        texts[part.index] += part.delta.content or ""
        if part.logprobs is not None:
            content[part.index] += part.logprobs.content
        assert spelled(content[part.index]).startswith(texts[part.index])
    for choice, text, told_of in zip(whole.choices, texts, content, strict=True):
        assert choice.message.content == text and choice.logprobs.content == told_of


def test_a_stop_text_cuts_them_with_the_text(server: Server) -> None:
    whole = ask(server).choices[0]
    text = whole.message.content
    stop = text[20:26]
    cut = ask(server, stop=stop).choices[0]
    assert cut.message.content == text[: text.index(stop)]
    content, length = cut.logprobs.content, len(cut.message.content)
    assert content == whole.logprobs.content[: len(content)]
    begins = len("".join(one.token for one in content[:-1]))
    assert begins < length <= begins + len(content[-1].token)


def test_they_are_told_where_they_are_asked_for(server: Server) -> None:
    assert ask(server, logprobs=False).choices[0].logprobs is None
    assert ask(server, max_tokens=3).choices[0].logprobs.content[0].top_logprobs == []
    assert complete(server, "Ada", logprobs=None).choices[0].logprobs is None
    of_model, of_sampling = (
        ask(server, **HOT, max_tokens=4, extra_body={"logprobs_of": of}).choices[0].logprobs.content
        for of in ("model", "sampling")
    )
    assert [one.token for one in of_model] == [one.token for one in of_sampling]
    assert of_model != of_sampling


@pytest.mark.parametrize("how", [{}, HOT])
def test_completions_say_where_each_token_begins(
    server: Server, int4_head: Runner, how: dict[str, Any]
) -> None:
    prompt = "Ada has 27"
    expected = told(int4_head, prompt, 12, raw_prompt=True, logprobs=2, **how)
    (choice,) = complete(server, prompt, **how).choices
    check_completion(choice, "", expected)
    echoed = scored(int4_head, prompt, raw_prompt=True, prompt_logprobs=2) + expected
    (choice,) = complete(server, prompt, echo=True, **how).choices
    check_completion(choice, prompt, echoed)


def check_completion(choice: Any, before: str, expected: Sequence[TokenLogprobs]) -> None:
    """Of each token that the text has, those of an echo included, where it begins and how likely it
    was; null of the first of all, which no text has."""
    found, places = choice.logprobs, range(len(expected))
    texts = [token.removeprefix("<bos>") for token in found.tokens]
    assert found.token_logprobs == [one.logprob for one in expected]
    assert choice.text == "".join(texts) and choice.text.startswith(before)
    assert found.text_offset == [len("".join(texts[:i])) for i in places]
    assert (texts != found.tokens) == bool(before)
    likeliest = zip(found.tokens, found.token_logprobs, found.top_logprobs, expected, strict=True)
    for token, logprob, top, one in likeliest:
        if logprob is None:
            assert top is None and one is expected[0]
        else:
            assert top[token] == logprob and len(top) in (2, 3)
            assert list(top.values())[:2] == [lp for _, lp in one.top]


@pytest.mark.parametrize("how", [HOT, HOT | {"echo": True}, {"echo": True, "max_tokens": 0}])
def test_a_stream_of_completions_tells_the_same(server: Server, how: dict[str, Any]) -> None:
    prompts = ["Ada has 27", "Mei owns"]
    whole = complete(server, prompts, **how)
    parts: list[dict[str, list[Any]]] = [{}, {}]
    texts = ["", ""]
    for chunk in complete(server, prompts, stream=True, **how):
        (part,) = chunk.choices
        texts[part.index] += part.text
        if part.logprobs is not None:
            for name, values in part.logprobs.model_dump().items():
                parts[part.index].setdefault(name, []).extend(values)
    assert parts == [choice.logprobs.model_dump() for choice in whole.choices]
    assert texts == [choice.text for choice in whole.choices]


def test_prompts_are_evaluated_as_harnesses_do(server: Server, int4_head: Runner) -> None:
    """With one token behind them, which they leave out, be it one that ends the text, or with none:
    of lists of ids, one after the other or together."""
    text = int4_head.encode(QUESTION)
    ended = [*text, *int4_head.generate(text, 200).token_ids[:-1]]  # a stop id follows
    prompts = [text[:30], ended, text[:2], text[:1]]
    one, none = (complete(server, prompts, echo=True, max_tokens=n, logprobs=1) for n in (1, 0))
    for prompt, with_one, without in zip(prompts, one.choices, none.choices, strict=True):
        expected = scored(int4_head, prompt, prompt_logprobs=1)
        assert without.logprobs.token_logprobs == [token.logprob for token in expected]
        assert with_one.logprobs.token_logprobs[:-1] == without.logprobs.token_logprobs
        assert without.finish_reason == "length"
        (alone,) = complete(server, prompt, echo=True, max_tokens=1, logprobs=1).choices
        assert alone.logprobs == with_one.logprobs
    assert one.choices[1].finish_reason == "stop"
    assert (none.usage.completion_tokens, none.usage.speculation["rounds"]) == (0, 0)
    assert none.usage.prompt_tokens == sum(map(len, prompts))


def test_no_tokens_are_asked_for_where_the_prompt_is_told_of(server: Server) -> None:
    for how in ({"echo": False}, {"logprobs": None}):
        with pytest.raises(openai.BadRequestError, match="max_tokens 0: needs echo: true and logp"):
            complete(server, "Ada", **{"echo": True, "max_tokens": 0} | how)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        complete(server, "Ada", max_tokens=-1, echo=True)


@pytest.mark.parametrize("count", [-1, 6, True, "2"])
def test_what_is_out_of_range_is_one_line(server: Server, count: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="logprobs: Input should be") as refused:
        complete(server, "Ada", logprobs=count)
    assert "\n" not in refused.value.message
