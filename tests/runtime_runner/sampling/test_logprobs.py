"""Log probabilities against float64, and each row's against the same row by itself."""

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.sampling.logprobs import (
    likeliest,
    log_softmax_of,
    pack_logprobs,
    unpack_logprobs,
)
from eagle_aot.runtime_runner.sampling.parameters import MAX_LOGPROBS, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler

VOCABULARIES = 17, 1021, 49_152
SPREADS = 0.01, 3.0, 40.0


def random_logits(*shape: int, spread: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator) * spread


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("spread", SPREADS)
def test_log_probabilities_are_those_of_float64(vocab: int, spread: float) -> None:
    logits = random_logits(2, 3, vocab, spread=spread)
    ids = torch.arange(17).expand(2, 3, -1)
    expected = logits.double().log_softmax(-1).gather(-1, ids)
    torch.testing.assert_close(log_softmax_of(logits, ids), expected.float(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_a_row_does_not_depend_on_its_neighbours(vocab: int) -> None:
    logits = random_logits(4, 5, vocab)
    tokens = logits.argmin(dim=-1)
    together = pack_logprobs(logits, tokens).unflatten(1, (5, -1))
    for text in range(4):
        for place in range(5):
            row = logits[text, place].clone().view(1, 1, -1)
            alone = pack_logprobs(row, tokens[text, place].view(1, 1))
            assert torch.equal(alone[0], together[text, place])


def test_the_lower_of_equally_likely_ids_comes_first() -> None:
    logits = torch.tensor([[[1.0, -0.0, 5.0, 0.0, 5.0, -7.0, float("-inf")]]])
    assert likeliest(logits).tolist() == [[[2, 4, 0, 1, 3, 5, 6]]]
    assert likeliest(torch.zeros(1, 1, 1000)).tolist() == [[list(range(MAX_LOGPROBS))]]


def test_packed_log_probabilities_are_unpacked_bit_by_bit() -> None:
    logits = random_logits(2, 3, 50)
    logits[1, 2, 5:] = -torch.inf
    tokens = logits.argmax(dim=-1)
    texts = unpack_logprobs(pack_logprobs(logits, tokens), 3)
    assert [[one.id for one in row] for row in texts] == tokens.tolist()
    for row, text in enumerate(texts):
        for place, one in enumerate(text):
            ids = torch.tensor([token for token, _ in one.top])
            exact = log_softmax_of(logits[row, place], ids).tolist()
            assert [logprob for _, logprob in one.top] == exact
            assert one.top[0] == (one.id, one.logprob)
    assert [len(one.top) for text in texts for one in text] == [20, 20, 20, 20, 20, 5]


def test_texts_of_a_batch_have_the_log_probabilities_that_each_requests() -> None:
    """One after temperature and penalties, one before them, and one that is greedy."""
    how = [
        SamplingParams(temperature=0.5, top_k=4, seed=1, logprobs=5, logprobs_of="sampling"),
        SamplingParams(temperature=0.5, presence_penalty=1.0, seed=1, logprobs=5),
        SamplingParams(logprobs=5, logprobs_of="sampling"),
    ]
    logits = random_logits(3, 1, 30)
    sampler = Sampler(3, "cpu", length=9, vocab=30)
    for sequence, sampling in enumerate(how):
        sampler.begin(sequence, sampling, [1, 2, 3])
    where = torch.full((3, 1), 3), torch.arange(3)
    processed = sampler.processed(logits, *where)
    tokens = sampler.choose(processed, *where)
    texts = unpack_logprobs(sampler.logprobs(logits, processed, tokens, where[1]), 1)
    cut = (logits[0, 0] / 0.5).double()
    kept = cut >= cut.sort(descending=True).values[3]
    expected = [cut.masked_fill(~kept, -torch.inf), logits[1, 0].double(), logits[2, 0].double()]
    for (one,), row in zip(texts, expected, strict=True):
        exact = row.log_softmax(0)
        assert one.logprob == pytest.approx(float(exact[one.id]), abs=1e-5)
        assert [lp for _, lp in one.top] == pytest.approx(exact[[i for i, _ in one.top]].tolist())
    assert [len(one.top) for (one,) in texts] == [4, 20, 20]


@pytest.mark.parametrize("count", [-1, 21, 1.0, True])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(SettingError, match=f"logprobs {count}: must be a whole number"):
        SamplingParams(logprobs=count)
    with pytest.raises(SettingError, match="logprobs_of head: must be one of model, sampling"):
        SamplingParams(logprobs_of="head")  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("vocab", [*VOCABULARIES, 262_144])
def test_a_recorded_row_does_not_depend_on_its_neighbours(vocab: int) -> None:
    logits = random_logits(4, 8, vocab).cuda()
    tokens = logits.argmin(dim=-1)
    together = recorded(logits, tokens).unflatten(1, (8, -1))
    for text in range(4):
        for place in (0, 3, 7):
            row = logits[text, place].clone().view(1, 1, -1)
            alone = recorded(row, tokens[text, place].view(1, 1))
            assert torch.equal(alone[0], together[text, place])
    exact = logits.double().log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).flatten().tolist()
    found = [one.logprob for text in unpack_logprobs(together.flatten(1), 8) for one in text]
    assert found == pytest.approx(exact, abs=1e-6, rel=1e-6)


def recorded(logits: Tensor, tokens: Tensor) -> Tensor:
    """Run in a CUDA graph, as a recorded round does."""
    pack_logprobs(logits, tokens)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = pack_logprobs(logits, tokens)
    graph.replay()
    return found
