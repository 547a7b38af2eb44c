"""Rounds with a DSpark head, against what DeepSpec's and speculators' own code draft."""

import itertools

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import committed
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters.dspark import DSparkDrafter
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.golden_cases import golden_case
from support.heads.dspark import DEEPSPEC, SPECULATORS, dspark_pair
from support.runner.eager_executor import EagerExecutor, prefilled
from support.runner.logging_drafter import LoggingDFlash
from support.runner.watched import rounds_of

DRAFTS = 7
FIRST = torch.zeros(1, dtype=torch.int64)
TREES = [
    Shape(3, 3, 9),
    Shape(7, 4, 16),
    Shape.of_paths(((0,), (1,), (0, 0), (1, 2), (0, 0, 1))),
]


class LoggingDrafter(LoggingDFlash, DSparkDrafter):
    """Drafts blocks of a case's size."""

    def __init__(self, executor: EagerExecutor, case: str) -> None:
        self.head = dspark_pair(case)[2]
        config, ids = self.head.config, self.head.target_ids
        reduced = ids if len(ids) < config.vocab_size else None
        layout = config.block_size, config.first_draft
        super().__init__(executor, executor.artifact, reduced, *layout)


def opened(case: str) -> tuple[EagerExecutor, LoggingDrafter]:
    executor = EagerExecutor(dspark_pair(case)[0], chain_len=DRAFTS)
    return executor, LoggingDrafter(executor, case)


def texts(case: str) -> tuple[list[int], list[int], dict[str, Tensor]]:
    """The prompt of a case, its whole text, and its tensors."""
    _, numbers = golden_case(f"dspark/{case}")
    return numbers["input.tokens"].tolist(), numbers["expected.text"].tolist(), numbers


@pytest.mark.parametrize("case", [DEEPSPEC, SPECULATORS])
def test_every_round_is_the_reference_implementations(case: str) -> None:
    prompt, text, numbers = texts(case)
    executor, drafter = opened(case)
    output, _, _ = rounds_of(
        executor, drafter, Shape.chain(DRAFTS), prompt, len(text) - len(prompt)
    )
    assert output == text[len(prompt) :]
    drafts = [draft.tokens[0].tolist() for draft in drafter.drafts]
    assert drafts == numbers["expected.round_drafts"].tolist()
    assert drafter.accepted == numbers["expected.round_accepted"].tolist()
    assert executor.calls["dspark_block"] == len(drafts)
    assert executor.calls["dspark_bias"] == DRAFTS * len(drafts)


def place_logits(case: str, text: list[int]) -> tuple[Tensor, Tensor]:
    """Return, for a block after a text whose last token is the bonus, its logits float64 [7, Vd]
    without bias, and the table W1 W2^T of biases float64 [V, Vd]."""
    executor, drafter = opened(case)
    prefilled(executor, drafter, text[:-1])
    place = torch.tensor([len(text) - 1])
    logits, _ = drafter._block(torch.tensor([text[-1:]]), place, FIRST, DRAFTS)
    head = drafter.head.markov_head
    biases = head.markov_w1.weight.double() @ head.markov_w2.weight.double().T
    return logits[0].double(), biases


@pytest.mark.parametrize("case", [DEEPSPEC, SPECULATORS])
@pytest.mark.parametrize("shape", TREES, ids=str)
def test_a_tree_has_the_likeliest_tokens_after_each_node(shape: Shape, case: str) -> None:
    """Every node has the log probability of the softmax after its parent's token, and its rank."""
    prompt, text, _ = texts(case)
    executor, drafter = opened(case)
    output, _, _ = rounds_of(executor, drafter, shape, prompt, 16)
    assert output == text[len(prompt) : len(prompt) + 16]
    ids = drafter.head.target_ids.tolist()
    lengths = itertools.accumulate(drafter.accepted, lambda n, a: n + a + 1, initial=len(prompt))
    for length, draft in list(zip(lengths, drafter.drafts, strict=False))[:4]:
        assert draft.parents is not None and draft.ranks is not None and draft.scores is not None
        logits, biases = place_logits(case, text[: length + 1])
        path, sums = [(0, text[length])], [0.0]
        rows = (draft.tokens[0].tolist(), draft.parents[0].tolist(), draft.ranks[0].tolist())
        for token, parent, rank in zip(*rows, strict=True):
            place, before = path[parent]
            scores, order = (logits[place] + biases[before]).log_softmax(-1).sort(descending=True)
            assert ids[int(order[rank])] == token
            path.append((place + 1, token))
            sums.append(sums[parent] + float(scores[rank]))
        assert draft.scores[0].tolist() == pytest.approx(sums[1:], abs=1e-4)


@pytest.mark.parametrize("case", [DEEPSPEC, SPECULATORS])
def test_the_head_catches_up_along_the_text(case: str) -> None:
    """Each token is compared with the draft after the right one before it."""
    prompt, text, _ = texts(case)
    start, count = len(prompt), 24
    executor, seen = opened(case)
    prefilled(executor, seen, text[: start + count])
    executor, drafter = opened(case)
    prefilled(executor, drafter, text[:start])
    following = torch.tensor([text[start + 1 : start + count + 1]])
    path = committed(following, torch.arange(start, start + count), FIRST)
    missed = torch.cat(seen.features, dim=1)[:, start:]
    right = drafter.catch_up(path, missed, Sampler(1, "cpu"))
    ids, expected = drafter.head.target_ids, []
    for first in range(start, start + count, DRAFTS):
        logits, biases = place_logits(case, text[: first + 1])
        before = torch.tensor(text[first : first + DRAFTS])
        best = ids[(logits[: len(before)] + biases[before]).argmax(-1)].tolist()
        expected += [a == b for a, b in zip(best, text[first + 1 :], strict=False)]
    assert right[0].tolist() == expected[:count] and any(expected) and not all(expected)
