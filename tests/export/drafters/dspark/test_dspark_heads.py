"""DSpark heads compared with what DeepSpec's and speculators' own code computed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.export.drafters.dspark.model import DSparkDraft
from eagle_aot.export.loading.quantise import quantise_draft
from eagle_aot.targets import TapTarget
from eagle_aot.targets.step import Step, chain_step, chain_tail
from support.checkpoint_edits import edit_tensors
from support.golden_cases import golden_case
from support.heads.dspark import DEEPSPEC, SPECULATORS, changed_head, dspark_pair

TOLERANCE = 1e-4
DRAFTS = 7

cases = pytest.mark.parametrize("case", [DEEPSPEC, SPECULATORS])


@torch.no_grad()
def block(
    draft: DSparkDraft, target: TapTarget, numbers: dict[str, Tensor], chunk: int = 40
) -> tuple[Tensor, Tensor]:
    """Return the logits [7, V] and states [1, 7, H] of the drafts of a block after a case's prompt,
    whose features are stored in chunks."""
    tokens, bonus = numbers["input.tokens"], numbers["expected.bonus"]
    for places in torch.arange(len(tokens)).split(chunk):
        _, taps = target.forward_logits_taps(tokens[None, places], places)
        draft.store(draft.fuse(taps), chain_step(places))
    config = draft.config
    step = chain_step(torch.arange(len(tokens), len(tokens) + config.block_size))
    tokens = bonus.view(1, 1).expand(1, config.block_size)
    logits, states = draft.run_block(tokens, step)
    return logits[0, config.first_draft :], states[:, config.first_draft :]


@cases
@pytest.mark.parametrize("chunk", [40, 16])
def test_a_block_has_the_logits_bias_and_confidence_of_the_reference_implementation(
    case: str, chunk: int
) -> None:
    directory, numbers = golden_case(f"dspark/{case}")
    _, target, draft = dspark_pair(case)
    logits, states = block(draft, target, numbers, chunk)
    assert (logits - numbers["expected.block_logits"]).abs().max() < TOLERANCE
    assert (states[0] - numbers["expected.block_hidden"]).abs().max() < TOLERANCE
    chain = numbers["expected.chain_tokens"]
    before = torch.cat((numbers["expected.bonus"], chain[:-1]))
    bias, confidence = draft.bias(before[None], states)
    corrected = logits + bias[0]
    assert (corrected - numbers["expected.chain_logits"]).abs().max() < TOLERANCE
    assert torch.equal(draft.target_ids[corrected.argmax(-1)], chain)
    assert (confidence[0, :, 0] - numbers["expected.confidence_logits"]).abs().max() < TOLERANCE
    assert draft.default_chain_len == len(chain) == DRAFTS
    verified = json.loads((directory / "case.json").read_text())["verify_length_by_threshold"]
    for threshold, length in verified.items():
        low = (confidence[0, :, 0].sigmoid() < float(threshold)).nonzero().flatten()
        assert [*low.tolist(), DRAFTS][0] == length
    assert draft.embed_tokens.weight.data_ptr() == target.embed_weight.data_ptr()


def test_causal_windows_see_earlier_rows_alone() -> None:
    """So a shorter block has the same rows, which it has not where layers see both ways."""
    for case, is_same in ((SPECULATORS, True), (DEEPSPEC, False)):
        _, numbers = golden_case(f"dspark/{case}")
        _, target, draft = dspark_pair(case)
        alone, _ = block(draft, target, numbers)
        rows = 4 + draft.config.first_draft
        bonus = numbers["expected.bonus"].view(1, 1).expand(1, rows)
        shorter = draft.run(bonus, chain_step(torch.arange(40, 40 + rows)))[0]
        shorter = shorter[draft.config.first_draft :]
        assert torch.allclose(shorter, alone[:4], atol=TOLERANCE) == is_same


@torch.no_grad()
def test_a_gated_markov_head_is_its_formula(tmp_path: Path) -> None:
    """W2 (sigmoid(gate([h; e])) * e) with e = W1[token], in float64; not measured elsewhere."""
    head = changed_head(tmp_path, markov_head_type="gated")
    generator = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(8, 72, generator=generator), torch.randn(8, generator=generator)
    gate = {"markov_head.gate_proj.weight": weight, "markov_head.gate_proj.bias": bias}
    edit_tensors(head, lambda tensors: tensors.update(gate))
    _, _, draft = dspark_pair(head=head)
    tokens = torch.tensor([[3, 200, 5]])
    states = torch.randn(1, 3, 64, generator=generator)
    found, _ = draft.bias(tokens, states)
    w1, w2 = (getattr(draft.markov_head, n).weight.double() for n in ("markov_w1", "markov_w2"))
    e = w1[tokens[0]]
    opened = torch.sigmoid(torch.cat((states[0].double(), e), -1) @ weight.double().T + bias)
    assert torch.allclose(found[0].double(), (opened * e) @ w2.T, atol=TOLERANCE)
    assert not torch.allclose(found, dspark_pair()[2].bias(tokens, states)[0], atol=0.1)


def test_a_scale_of_logits_is_that_of_the_bias_too() -> None:
    _, _, draft = dspark_pair()
    tokens, states = torch.tensor([[3, 7]]), torch.ones(1, 2, 64)
    bias, confidence = draft.bias(tokens, states)
    draft.config = replace(draft.config, logit_scale=0.5)
    scaled, same = draft.bias(tokens, states)
    assert torch.equal(scaled, 0.5 * bias) and torch.equal(same, confidence)


def test_a_head_in_int8_has_nearly_the_same_logits_and_a_dense_confidence() -> None:
    _, numbers = golden_case(f"dspark/{SPECULATORS}")
    _, target, draft = dspark_pair(SPECULATORS)
    quantise_draft(draft, target, "int8")
    linears = [m for m in draft.modules() if isinstance(m, torch.nn.Linear)]
    assert linears == [draft.markov_head.markov_w2], "its 8 columns are no whole group"
    logits, states = block(draft, target, numbers)
    assert 0 < (logits - numbers["expected.block_logits"]).abs().max() < 0.2
    before = numbers["expected.chain_tokens"][None].roll(1)
    before[0, 0] = numbers["expected.bonus"]
    confidence = draft.bias(before, states)[1][0, :, 0]
    assert (confidence - numbers["expected.confidence_logits"]).abs().max() < 0.2


@torch.no_grad()
def test_blocks_of_two_sequences_are_those_of_each_alone() -> None:
    _, _, draft = dspark_pair(sequences=2)
    generator, rows = torch.Generator().manual_seed(1), draft.config.block_size
    features = torch.randn(2, 30, draft.hidden_size, generator=generator)
    outputs = []
    for sequences in ([0, 1], [0], [1]):
        draft.reset_cache()
        positions = torch.stack([torch.arange(30)] * len(sequences))
        which = torch.tensor(sequences)
        draft.store(features[which], Step(positions, which, chain_tail(positions)))
        places = torch.stack([torch.arange(30, 30 + rows)] * len(sequences))
        bonus = (which + 5).unsqueeze(1).expand(-1, rows)
        logits, states = draft.run_block(bonus, Step(places, which, chain_tail(places)))
        outputs.append((logits, states, *draft.bias(bonus, states)))
    for both, first, second in zip(*outputs, strict=True):
        assert torch.allclose(both, torch.cat((first, second)), atol=1e-5)
