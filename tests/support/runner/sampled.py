"""Sampling from the toy model token by token, in plain numbers, which any decoding must equal."""

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import noise_keys
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
    prompt: Sequence[int], model: int, length: int, sampling: SamplingParams
) -> list[int]:
    """Return a text of the toy model with the seed `model`."""
    text = list(prompt)
    for _ in range(length):
        text.append(sampled_token(text, len(prompt), model, sampling))
    return text[len(prompt) :]


def sampled_token(text: list[int], prompt: int, model: int, sampling: SamplingParams) -> int:
    """Return the next token, as OpenAI's API and transformers define it."""
    values = processed(text, prompt, model, sampling)
    if sampling.temperature:
        assert sampling.seed is not None
        ((low, high),) = noise_keys(sampling.seed, len(text), len(text) + 1).tolist()
        noise = gumbel_reference(IDS, (low, high)).tolist()
        values = [v / sampling.temperature + g for v, g in zip(values, noise, strict=True)]
    return values.index(max(values))


def expected_logprobs(
    prompt: Sequence[int], output: Sequence[int], model: int, sampling: SamplingParams
) -> list[tuple[float, list[tuple[int, float]]]]:
    """Return for each token of an output its log probability, and the likeliest with theirs."""
    result, text = [], list(prompt)
    for token in output if sampling.logprobs is not None else ():
        of_model = sampling.logprobs_of == "model"
        values = processed(text, len(prompt), model, GREEDY if of_model else sampling)
        scaled = torch.tensor(values, dtype=torch.float64) / (
            (not of_model and sampling.temperature) or 1.0
        )
        logprobs = scaled.log_softmax(0).tolist()
        order = sorted(range(VOCAB), key=lambda i: (-values[i], i))
        possible = [i for i in order if values[i] > float("-inf")]
        top = [(i, logprobs[i]) for i in possible[: sampling.logprobs]]
        result.append((logprobs[token], top))
        text.append(token)
    return result


def prompt_logprobs(
    prompt: Sequence[int], model: int, most: int | None
) -> list[tuple[int, float | None, list[tuple[int, float]]]]:
    """Return for each token of a prompt its id, its log probability, and the likeliest with theirs:
    of the first token the id alone, and nothing where `most` is None."""
    if most is None:
        return []
    rest = expected_logprobs(prompt[:1], prompt[1:], model, SamplingParams(logprobs=most))
    scored = [(token, *logprobs) for token, logprobs in zip(prompt[1:], rest, strict=True)]
    return [(prompt[0], None, []), *scored]


def processed(text: list[int], prompt: int, model: int, sampling: SamplingParams) -> list[float]:
    """Return the logits after a text that begins with a prompt of `prompt` tokens."""
    output, likeliest = text[prompt:], next_token(text, model)
    values = []
    for token in range(VOCAB):
        value = float(token == likeliest) + sampling.logit_bias.get(token, 0.0)
        if token in text:
            penalty = sampling.repetition_penalty
            value = value / penalty if value >= 0 else value * penalty
        value -= sampling.presence_penalty * (token in output)
        value -= sampling.frequency_penalty * output.count(token)
        allowed = sampling.allowed_ids is None or token in sampling.allowed_ids
        values.append(value if allowed else float("-inf"))
    return values
