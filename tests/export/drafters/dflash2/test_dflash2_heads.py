"""DFlash2 heads compared with what z-lab's and speculators' own code computed."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagle_aot.export.drafters.dflash2.model import BlockConvolution, DFlash2Draft
from eagle_aot.export.loading.quantise import quantise_draft
from eagle_aot.targets import TapTarget
from eagle_aot.targets.step import Step, chain_step, chain_tail
from support.golden_cases import golden_case
from support.heads.dflash2 import SPECULATORS, Z_LAB, dflash2_pair

TOLERANCE = 1e-4
BLOCK, DRAFTS = 8, 7

cases = pytest.mark.parametrize("case", [Z_LAB, SPECULATORS])


@torch.no_grad()
def block(
    draft: DFlash2Draft, target: TapTarget, numbers: dict[str, Tensor], chunk: int = 40
) -> tuple[Tensor, Tensor]:
    """Return logits and projections of a block after a case's prompt, whose features are stored in
    chunks."""
    tokens, bonus = numbers["input.tokens"], numbers["expected.bonus"]
    for places in torch.arange(len(tokens)).split(chunk):
        _, taps = target.forward_logits_taps(tokens[None, places], places)
        draft.store(draft.fuse(taps), chain_step(places))
    step = chain_step(torch.arange(len(tokens), len(tokens) + BLOCK))
    logits, projected = draft.run_block(bonus.view(1, 1).expand(1, BLOCK), step)
    return logits[0, 1:], projected[:, 1:]


@cases
@pytest.mark.parametrize("chunk", [40, 16])
def test_a_block_has_the_logits_and_scores_of_the_reference_implementation(
    case: str, chunk: int
) -> None:
    _, numbers = golden_case(f"dflash2/{case}")
    _, target, draft = dflash2_pair(case)
    logits, projected = block(draft, target, numbers, chunk)
    assert (logits - numbers["expected.block_logits"]).abs().max() < TOLERANCE
    unary, ids = logits.topk(4)
    assert torch.equal(ids, numbers["expected.candidate_ids"])
    before = torch.cat((numbers["expected.bonus"].expand(1, 4), ids[:-1]))
    pairs = draft.candidate_selector(before[None], ids[None], projected)[0]
    edges = unary.unsqueeze(1) + pairs
    assert (edges - numbers["expected.edges"]).abs().max() < TOLERANCE
    assert draft.default_chain_len == DRAFTS
    assert draft.embed_tokens.weight.data_ptr() == target.embed_weight.data_ptr()


def test_causal_windows_see_earlier_rows_alone_and_a_convolution_begins_at_its_block() -> None:
    """Rows of other sequences, and of an earlier run of the same one, do not reach a block."""
    _, numbers = golden_case(f"dflash2/{SPECULATORS}")
    _, target, draft = dflash2_pair(SPECULATORS)
    alone, _ = block(draft, target, numbers)
    shorter = chain_step(torch.arange(40, 44))
    bonus = numbers["expected.bonus"].view(1, 1).expand(1, 4)
    assert not torch.allclose(draft.run(bonus, shorter)[0, 1:], alone[:3], atol=1e-3)
    draft.config = replace(draft.config, causal_windows=True)
    causal, _ = block(draft, target, numbers)
    assert torch.allclose(draft.run(bonus, shorter)[0, 1:], causal[:3], atol=TOLERANCE)
    assert not torch.allclose(causal, alone, atol=1e-3)


def test_a_head_in_int8_has_nearly_the_same_logits_and_shares_its_tables() -> None:
    _, numbers = golden_case(f"dflash2/{SPECULATORS}")
    _, target, draft = dflash2_pair(SPECULATORS)
    quantise_draft(draft, target, "int8")
    assert [m for m in draft.modules() if isinstance(m, torch.nn.Linear)] == [draft.lm_head]
    logits, _ = block(draft, target, numbers)
    assert 0 < (logits - numbers["expected.block_logits"]).abs().max() < 0.2


@torch.no_grad()
def test_blocks_of_two_sequences_are_those_of_each_alone() -> None:
    _, _, draft = dflash2_pair(sequences=2)
    features = torch.randn(2, 30, draft.hidden_size, generator=torch.Generator().manual_seed(1))
    outputs = []
    for sequences in ([0, 1], [0], [1]):
        draft.reset_cache()
        positions = torch.stack([torch.arange(30)] * len(sequences))
        which = torch.tensor(sequences)
        draft.store(features[which], Step(positions, which, chain_tail(positions)))
        rows = torch.stack([torch.arange(30, 30 + BLOCK)] * len(sequences))
        bonus = (which + 5).unsqueeze(1).expand(-1, BLOCK)
        outputs.append(draft.run_block(bonus, Step(rows, which, chain_tail(rows))))
    for both, first, second in zip(*outputs, strict=True):
        assert torch.allclose(both, torch.cat((first, second)), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("taps", [1, 2, 4])
def test_a_convolution_is_its_formula(taps: int) -> None:
    """In two blocks of five rows, one after another, by loops in float64."""
    config = replace(dflash2_pair()[2].config, conv_kernel_size=taps)
    conv = BlockConvolution(config, torch.float32)
    conv.base_kernel.normal_()
    conv.kernel_projection.weight = torch.nn.Parameter(torch.randn(2 * taps * 4, 64), False)
    x, normed = torch.randn(2, 1, 10, 64)
    row = (torch.arange(10) % 5).view(1, 10, 1)
    found = conv(x, conv.kernels(normed), 1, row)[0]
    dynamic = (normed[0].double() @ conv.kernel_projection.weight.double().T).view(10, 2, taps, 4)
    for i, channel in itertools.product(range(10), range(64)):
        total = sum(
            (conv.base_kernel[1, t, channel] + dynamic[i, 1, t, channel // 16])
            * x[0, i - t, channel]
            for t in range(min(taps, i % 5 + 1))
        )
        assert abs(float(found[i, channel]) - float(total)) < TOLERANCE
