"""Sampling from the toy model token by token, in plain numbers: what any decoding must give."""

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.philox import noise_keys
from eagle_aot.triton_kernels.gumbel_argmax import gumbel_reference
from support.runner.toy import VOCAB, next_token

IDS = torch.arange(VOCAB, dtype=torch.int32)
samplings = st.just(GREEDY) | st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.15, 0.3, 1.0, 5.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 3.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3]),
    logit_bias=st.just({}) | st.dictionaries(st.integers(0, VOCAB - 1), st.just(0.75), max_size=2),
    allowed_ids=st.none() | st.just((1, 4, 9, 16)),
    seed=st.integers(0, 3),
    logprobs=st.none() | st.integers(0, 20),
    logprobs_of=st.sampled_from(["model", "sampling"]),
    prompt_logprobs=st.none() | st.none() | st.integers(0, 20),
)


def sampled_text(
    prompt: Sequence[int], model: int, length: int, asked: SamplingParams
) -> list[int]:
    """Of the toy model with the seed `model`."""
    text = list(prompt)
    for _ in range(length):
        text.append(sampled_token(text, len(prompt), model, asked))
    return text[len(prompt) :]


def sampled_token(text: list[int], prompt: int, model: int, asked: SamplingParams) -> int:
    """The next one, as OpenAI's API and transformers say it is found."""
    values = processed(text, prompt, model, asked)
    if asked.temperature:
        assert asked.seed is not None
        (key,) = noise_keys(asked.seed, len(text), len(text) + 1).tolist()
        noise = gumbel_reference(IDS, tuple(key)).tolist()
        values = [v / asked.temperature + g for v, g in zip(values, noise, strict=True)]
    return values.index(max(values))


def told_logprobs(
    prompt: Sequence[int], output: Sequence[int], model: int, asked: SamplingParams
) -> list[tuple[float, list[tuple[int, float]]]]:
    """Of each token of an output: its logarithm, and the likeliest with theirs."""
    told, text = [], list(prompt)
    for token in output if asked.logprobs is not None else ():
        values = processed(text, len(prompt), model, asked)
        if asked.logprobs_of == "model":
            values = processed(text, len(prompt), model, GREEDY)
        scaled = torch.tensor(values, dtype=torch.float64) / (
            (asked.logprobs_of == "sampling" and asked.temperature) or 1.0
        )
        found = scaled.log_softmax(0).tolist()
        order = sorted(range(VOCAB), key=lambda i: (-values[i], i))
        possible = [i for i in order if values[i] > float("-inf")]
        told.append((found[token], [(i, found[i]) for i in possible[: asked.logprobs]]))
        text.append(token)
    return told


def prompt_logprobs(
    prompt: Sequence[int], model: int, most: int | None
) -> list[tuple[int, float | None, list[tuple[int, float]]]]:
    """Of each token of a prompt: its id, its logarithm, and the likeliest with theirs; nothing of
    the first but its id, and of no token where nobody asks."""
    if most is None:
        return []
    asked = SamplingParams(logprobs=most)
    of_others = told_logprobs(prompt[:1], prompt[1:], model, asked)
    told = [(token, *one) for token, one in zip(prompt[1:], of_others, strict=True)]
    return [(prompt[0], None, []), *told]


def processed(text: list[int], prompt: int, model: int, asked: SamplingParams) -> list[float]:
    """Logits behind a text, of which the first `prompt` tokens were given."""
    output, likeliest = text[prompt:], next_token(text, model)
    values = []
    for token in range(VOCAB):
        value = float(token == likeliest) + asked.logit_bias.get(token, 0.0)
        if token in text:
            value = (
                value / asked.repetition_penalty if value >= 0 else value * asked.repetition_penalty
            )
        value -= asked.presence_penalty * (token in output)
        value -= asked.frequency_penalty * output.count(token)
        allowed = asked.allowed_ids is None or token in asked.allowed_ids
        values.append(value if allowed else float("-inf"))
    return values
