"""Sampling from the toy model token by token, in plain numbers: what any decoding must give."""

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from eagle_aot.runtime_runner.sampling.parameters import GREEDY, Sampling
from eagle_aot.runtime_runner.sampling.philox import noise_keys
from eagle_aot.triton_kernels.gumbel_argmax import gumbel_reference
from support.runner.toy import VOCAB, next_token

IDS = torch.arange(VOCAB, dtype=torch.int32)
samplings = st.just(GREEDY) | st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.15, 0.3, 1.0, 5.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 3.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3]),
    logit_bias=st.just({}) | st.dictionaries(st.integers(0, VOCAB - 1), st.just(0.75), max_size=2),
    allowed_ids=st.none() | st.just((1, 4, 9, 16)),
    seed=st.integers(0, 3),
)


def sampled_text(prompt: Sequence[int], model: int, length: int, asked: Sampling) -> list[int]:
    """Of the toy model with the seed `model`."""
    text = list(prompt)
    for _ in range(length):
        text.append(sampled_token(text, len(prompt), model, asked))
    return text[len(prompt) :]


def sampled_token(text: list[int], prompt: int, model: int, asked: Sampling) -> int:
    """The next one, as OpenAI's API and transformers say it is found."""
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
    if asked.temperature:
        assert asked.seed is not None
        (key,) = noise_keys(asked.seed, len(text), len(text) + 1).tolist()
        noise = gumbel_reference(IDS, tuple(key)).tolist()
        values = [v / asked.temperature + g for v, g in zip(values, noise, strict=True)]
    return values.index(max(values))
