"""Processors row by row against those of transformers."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.processors import Processors, Rows

VOCAB = 61
SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None)
STOPS = [3, 5]
tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 2, 7, 60, 61, 100]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.25]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5), max_size=3),
    allowed_ids=st.none() | st.lists(st.integers(6, VOCAB - 1), min_size=1).map(tuple),
    min_tokens=st.integers(0, 4),
    seed=st.just(1),
)


class Counted(LogitsProcessor):
    """Presence and frequency penalties, which transformers does not have, as OpenAI's API
    documents them: of generated tokens."""

    def __init__(self, prompt: int, sampling: SamplingParams) -> None:
        self.prompt, self.sampling = prompt, sampling

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for token in set(input_ids[0, self.prompt :].tolist()):
            times = input_ids[0, self.prompt :].tolist().count(token)
            scores[0, token] -= self.sampling.presence_penalty
            scores[0, token] -= self.sampling.frequency_penalty * times
        return scores


def expected(logits: Tensor, prompt: list[int], output: list[int], s: SamplingParams) -> Tensor:
    """Of one row float32 [V], as transformers processes it."""
    steps = LogitsProcessorList()
    if s.logit_bias:
        steps.append(
            SequenceBiasLogitsProcessor([[[t], float(b)] for t, b in s.logit_bias.items()])
        )
    steps.append(RepetitionPenaltyLogitsProcessor(s.repetition_penalty))
    steps.append(Counted(len(prompt), s))
    if s.min_tokens:
        steps.append(MinNewTokensLengthLogitsProcessor(len(prompt), s.min_tokens, STOPS, "cpu"))
    if s.allowed_ids is not None:
        steps.append(PrefixConstrainedLogitsProcessor(lambda *_: list(s.allowed_ids or ()), 1))
    steps.append(TemperatureLogitsWarper(s.temperature))
    if s.top_k:
        steps.append(TopKLogitsWarper(s.top_k))
    if s.top_p < 1:
        steps.append(TopPLogitsWarper(s.top_p))
    if s.min_p:
        steps.append(MinPLogitsWarper(s.min_p))
    return steps(torch.tensor([prompt + output]), logits.unsqueeze(0).clone())[0]


def found(
    logits: Tensor, prompt: list[int], output: list[int], path: list[int], s: SamplingParams
) -> Tensor:
    """The same of ours, divided by the temperature: `output` is decided, `path` drafted."""
    processors = Processors(2, VOCAB, torch.device("cpu"))
    processors.set(0, SamplingParams(), [1, 2], [])
    processors.set(1, s, prompt, STOPS)
    sequences = torch.tensor([1])
    decided = torch.tensor([output], dtype=torch.int64)
    processors.count(sequences, decided, torch.ones_like(decided, dtype=torch.bool))
    position = torch.tensor([len(prompt) + len(output) + len(path)])
    rows = Rows(sequences, position, torch.tensor([[*path, -1]]))
    scale = torch.tensor([1 / s.temperature])
    cut = processors.filtered(processors.penalised(logits.unsqueeze(0), rows), scale, rows)
    return cut[0] * scale


def assert_alike(ours: Tensor, theirs: Tensor) -> None:
    """Alike but for rounding."""
    assert torch.equal(ours.isinf(), theirs.isinf()), (ours, theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@SETTINGS
@given(
    prompt=tokens, output=tokens, path=st.just([]) | tokens, sampling=samplings,
    seed=st.integers(0, 99), excluded=st.integers(0, 20),
)  # fmt: skip
def test_a_row_is_processed_as_by_transformers(
    prompt: list[int], output: list[int], path: list[int], sampling: SamplingParams, seed: int,
    excluded: int,
) -> None:  # fmt: skip
    """With drafts on its path they count as tokens of the text do; some logits are -inf."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(VOCAB, generator=generator) * 3
    logits[torch.randperm(VOCAB, generator=generator)[:excluded]] = -torch.inf
    allowed = logits if sampling.allowed_ids is None else logits[list(sampling.allowed_ids)]
    assume(not allowed.isinf().all())  # else nothing is left, and any answer as good as another
    ours = found(logits, prompt, output, path, sampling)
    assert_alike(ours, expected(logits, prompt, output + path, sampling))


@SETTINGS
@given(
    levels=st.integers(1, 6), seed=st.integers(0, 99), k=st.integers(1, VOCAB),
    p=st.floats(0.01, 0.99),
)  # fmt: skip
def test_equal_logits_stay_or_go_together(levels: int, seed: int, k: int, p: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, levels, (VOCAB,), generator=generator).float()
    for s in (SamplingParams(temperature=1.0, top_k=k), SamplingParams(temperature=1.0, top_p=p)):
        ours = found(logits, [1], [], [], s)
        assert torch.equal(~ours.isinf(), logits >= ours[~ours.isinf()].min())
        theirs = expected(logits, [1], [], s)
        assert set(logits[~theirs.isinf()].tolist()) == set(logits[~ours.isinf()].tolist())


def test_a_single_allowed_id_is_left() -> None:
    s = SamplingParams(temperature=1.0, allowed_ids=(7,), top_k=3, top_p=0.1, min_p=0.5)
    ours = found(torch.randn(VOCAB), [7, 7], [7], [7, 7], s)
    assert (~ours.isinf()).nonzero().tolist() == [[7]]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Bit for bit, in any company and at any place."""
    generator = torch.Generator().manual_seed(2)
    many = [
        SamplingParams(
            temperature=0.5 + i / 7, top_k=7 * i, top_p=1 - i / 20, repetition_penalty=1 + i / 9
        )
        for i in range(8)
    ]
    processors = Processors(8, VOCAB, torch.device("cpu"))
    for sequence, sampling in enumerate(many):
        processors.set(sequence, sampling, [sequence, 20 + sequence], STOPS)
    logits = torch.randn(8, VOCAB, generator=generator) * 3
    scale = torch.tensor([1 / s.temperature for s in many])

    def processed(some: list[int]) -> Tensor:
        at = torch.tensor(some)
        rows = Rows(at, at + 9, (at.unsqueeze(1) + torch.tensor([0, 30])) % VOCAB)
        return processors.filtered(processors.penalised(logits[at], rows), scale[at], rows)

    together = processed([*range(8)])
    for some in ([3], [7, 0], [5, 2, 6], [*range(7, -1, -1)]):
        assert torch.equal(processed(some), together[some])


def test_parameters_at_their_defaults_change_no_bit() -> None:
    processors = Processors(1, VOCAB, torch.device("cpu"))
    processors.set(0, SamplingParams(temperature=0.7), [1, 2], STOPS)
    logits = torch.randn(3, VOCAB)
    where = torch.zeros(3, dtype=torch.int64)
    rows = Rows(where, where + 2, torch.tensor([[-1, -1], [4, -1], [4, 4]]))
    scale = torch.full((3,), 1 / 0.7)
    assert torch.equal(processors.filtered(processors.penalised(logits, rows), scale, rows), logits)
