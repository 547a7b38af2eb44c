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


def chat(server: Server, **more: Any) -> Any:
    parameters = {"temperature": 0, "logprobs": True} | more
    messages: Any = [{"role": "user", "content": QUESTION}]
    return server.client.chat.completions.create(model="tiny", messages=messages, **parameters)


def complete(server: Server, prompt: Any, **more: Any) -> Any:
    parameters = {"temperature": 0, "max_tokens": 12, "logprobs": 2} | more
    return server.client.completions.create(model="tiny", prompt=prompt, **parameters)


def pairs(content: list[Any]) -> list[tuple[float, list[float]]]:
    """Log probabilities of each token of a chat, and of the likeliest ones at its position."""
    return [(one.logprob, [top.logprob for top in one.top_logprobs]) for one in content]


def spelled(content: list[Any]) -> str:
    """The text of tokens; special tokens have no bytes."""
    return b"".join(bytes(one.bytes) for one in content if one.bytes is not None).decode()


def runner_logprobs(runner: Runner, prompt: str, count: int, **options: Any) -> list[TokenLogprobs]:
    result = runner.generate(prompt, count, **options)
    assert result.logprobs is not None
    return result.logprobs


def runner_prompt_logprobs(runner: Runner, prompt: Any, **options: Any) -> list[TokenLogprobs]:
    result = runner.generate(prompt, 0, **options)
    assert result.prompt_logprobs is not None
    return result.prompt_logprobs


@pytest.mark.parametrize("how", [{}, HOT, HOT | {"max_tokens": 9}])
def test_a_chat_has_the_log_probabilities_of_the_runner(
    server: Server, tiny: Runner, how: dict[str, Any]
) -> None:
    """Every token of the text has them, and the id that ends it has none."""
    answer = chat(server, **{"max_tokens": 64, "top_logprobs": 3} | how)
    choice, options = answer.choices[0], dict(how)
    count = options.pop("max_tokens", 64)
    expected = runner_logprobs(tiny, QUESTION, count, logprobs=3, **options)
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
def test_a_stream_has_the_same_log_probabilities_in_parts(
    server: Server, how: dict[str, Any]
) -> None:
    """Each comes with its text, and none for text that a stop text withheld."""
    whole = chat(server, top_logprobs=2, **how)
    texts, content = [""] * len(whole.choices), [list[Any]() for _ in whole.choices]
    for chunk in chat(server, top_logprobs=2, stream=True, **how):
        (part,) = chunk.choices
        texts[part.index] += part.delta.content or ""
        if part.logprobs is not None:
            content[part.index] += part.logprobs.content
        assert spelled(content[part.index]).startswith(texts[part.index])
    for choice, text, tokens in zip(whole.choices, texts, content, strict=True):
        assert choice.message.content == text and choice.logprobs.content == tokens


def test_log_probabilities_come_only_if_requested(server: Server) -> None:
    assert chat(server, logprobs=False).choices[0].logprobs is None
    assert chat(server, max_tokens=3).choices[0].logprobs.content[0].top_logprobs == []
    assert complete(server, "Ada", logprobs=None).choices[0].logprobs is None
    of_model, of_sampling = (
        chat(server, **HOT, max_tokens=4, extra_body={"logprobs_of": of})
        .choices[0]
        .logprobs.content
        for of in ("model", "sampling")
    )
    assert [one.token for one in of_model] == [one.token for one in of_sampling]
    assert of_model != of_sampling


@pytest.mark.parametrize("how", [{}, HOT])
def test_completions_have_the_offset_of_each_token(
    server: Server, tiny: Runner, how: dict[str, Any]
) -> None:
    prompt = "Ada has 27"
    expected = runner_logprobs(tiny, prompt, 12, raw_prompt=True, logprobs=2, **how)
    (choice,) = complete(server, prompt, **how).choices
    check_completion(choice, "", expected)
    prompt_logprobs = runner_prompt_logprobs(tiny, prompt, raw_prompt=True, prompt_logprobs=2)
    echoed = prompt_logprobs + expected
    (choice,) = complete(server, prompt, echo=True, **how).choices
    check_completion(choice, prompt, echoed)


def check_completion(choice: Any, prefix: str, expected: Sequence[TokenLogprobs]) -> None:
    """Check the offset and log probability of each token of a text, with those of an echo; they are
    null for the first of an echo, which has no text."""
    logprobs, positions = choice.logprobs, range(len(expected))
    texts = [token.removeprefix("<bos>") for token in logprobs.tokens]
    assert logprobs.token_logprobs == [one.logprob for one in expected]
    assert choice.text == "".join(texts) and choice.text.startswith(prefix)
    assert logprobs.text_offset == [len("".join(texts[:i])) for i in positions]
    assert (texts != logprobs.tokens) == bool(prefix)
    likeliest = zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, expected, strict=True
    )
    for token, logprob, top, one in likeliest:
        if logprob is None:
            assert top is None and one is expected[0]
        else:
            assert top[token] == logprob and len(top) in (2, 3)
            assert list(top.values())[:2] == [lp for _, lp in one.top]


@pytest.mark.parametrize("how", [HOT, HOT | {"echo": True}, {"echo": True, "max_tokens": 0}])
def test_a_stream_of_completions_has_the_same_log_probabilities(
    server: Server, how: dict[str, Any]
) -> None:
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


def test_prompts_are_scored_as_evaluation_harnesses_do(server: Server, tiny: Runner) -> None:
    """They request one token after a prompt and ignore it, or none. Prompts are lists of ids, one
    or several in a request."""
    text = tiny.encode(QUESTION)
    ended = [*text, *tiny.generate(text, 200).token_ids[:-1]]  # a stop id follows
    prompts = [text[:30], ended, text[:2], text[:1]]
    one, none = (complete(server, prompts, echo=True, max_tokens=n, logprobs=1) for n in (1, 0))
    for prompt, with_one, without in zip(prompts, one.choices, none.choices, strict=True):
        expected = runner_prompt_logprobs(tiny, prompt, prompt_logprobs=1)
        assert without.logprobs.token_logprobs == [token.logprob for token in expected]
        assert with_one.logprobs.token_logprobs[:-1] == without.logprobs.token_logprobs
        assert without.finish_reason == "length"
        (alone,) = complete(server, prompt, echo=True, max_tokens=1, logprobs=1).choices
        assert alone.logprobs == with_one.logprobs
    assert one.choices[1].finish_reason == "stop"
    assert (none.usage.completion_tokens, none.usage.speculation["rounds"]) == (0, 0)
    assert none.usage.prompt_tokens == sum(map(len, prompts))


def test_zero_tokens_need_an_echo(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens 0: needs echo: true"):
        complete(server, "Ada", echo=False, max_tokens=0)
    (choice,) = complete(server, "Ada has", echo=True, max_tokens=0, logprobs=None).choices
    assert (choice.text, choice.logprobs, choice.finish_reason) == ("Ada has", None, "length")
