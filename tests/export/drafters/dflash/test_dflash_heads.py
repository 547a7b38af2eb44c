"""DFlash heads compared with recorded results of z-lab's code, and with the formulas."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.export.loading.quantise import quantise_draft
from eagle_aot.targets import TapTarget
from eagle_aot.targets.step import chain_step
from support.golden_cases import golden_case
from support.heads.dflash import SlowHead, as_speculators, copied_head, dflash_pair

_, NUMBERS = golden_case("dflash/qwen3_full")
TOKENS, BONUS = NUMBERS["input.tokens"], NUMBERS["expected.bonus"]
TOLERANCE = 1e-4
WINDOW = 16


@torch.no_grad()
def block(draft: DFlashDraft, target: TapTarget, rows: int = 6, chunk: int = 40) -> Tensor:
    """Return the logits of a block after the case's prompt, whose features are stored in chunks."""
    length = len(TOKENS)
    for start in range(0, length, chunk):
        places = torch.arange(start, min(start + chunk, length))
        _, taps = target.forward_logits_taps(TOKENS[None, places], places)
        draft.store(draft.fuse(taps), chain_step(places))
    logits = draft.run(
        BONUS.view(1, 1).expand(1, rows), chain_step(torch.arange(length, length + rows))
    )
    return logits[0, 1:]


@pytest.mark.parametrize("chunk", [40, 16])
def test_a_block_has_the_logits_of_the_reference_implementation(chunk: int) -> None:
    _, target, draft = dflash_pair()
    logits = block(draft, target, chunk=chunk)
    assert (logits - NUMBERS["expected.block_logits"]).abs().max() < TOLERANCE
    assert logits.argmax(-1).tolist() == NUMBERS["expected.block_tokens"].tolist()
    assert draft.default_chain_len == 5
    assert draft.embed_tokens.weight.data_ptr() == target.embed_weight.data_ptr()


def test_a_head_stored_by_speculators_has_the_same_logits(tmp_path: Path) -> None:
    _, target, draft = dflash_pair(as_speculators(tmp_path))
    assert draft.tap_layers == (2, 4, 5)
    assert (block(draft, target) - NUMBERS["expected.block_logits"]).abs().max() < TOLERANCE


def test_a_head_in_int8_drafts_the_same_tokens_and_shares_its_tables() -> None:
    _, target, draft = dflash_pair()
    quantise_draft(draft, target, "int8")
    assert [m for m in draft.modules() if isinstance(m, torch.nn.Linear)] == [draft.lm_head]
    logits, wanted = block(draft, target), NUMBERS["expected.block_logits"]
    assert logits.argmax(-1).tolist() == NUMBERS["expected.block_tokens"].tolist()
    assert 0 < (logits - wanted).abs().max() < 0.1


def test_a_reduced_vocabulary_has_the_logits_of_its_tokens(tmp_path: Path) -> None:
    ids = [*range(300, 20, -3), 5]
    _, target, draft = dflash_pair(as_speculators(tmp_path, ids))
    assert draft.target_ids.tolist() == ids
    wanted = NUMBERS["expected.block_logits"][:, ids]
    assert (block(draft, target) - wanted).abs().max() < TOLERANCE


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [6, 16])
def test_sliding_layers_see_their_window(rows: int, causal: bool, tmp_path: Path) -> None:
    """Within the block a row sees the rows before it, or all rows."""
    own = {"mask_token_id": 319, "target_layer_ids": [1, 3, 4], "causal": causal}
    kinds = ["sliding_attention", "full_attention"]
    changes = {"layer_types": kinds, "sliding_window": WINDOW, "block_size": rows}
    head = copied_head(tmp_path, dflash_config=own, **changes)
    _, target, draft = dflash_pair(head)
    slots = len(TOKENS)
    place, slot = slots + torch.arange(rows).unsqueeze(1), torch.arange(slots + rows)
    last = place if causal else place[-1]
    sees = (slot <= last) & (last - slot < WINDOW)
    masks = [sees.expand(rows, -1), torch.ones(rows, slots + rows, dtype=torch.bool)]
    wanted = SlowHead(head).logits(NUMBERS["expected.taps"], int(BONUS), rows, masks)
    assert (block(draft, target, rows) - wanted).abs().max() < TOLERANCE
    if rows == 6 and not causal:  # the formulas are those of the case
        everything = SlowHead(head).logits(
            NUMBERS["expected.taps"], int(BONUS), rows, [masks[1], masks[1]]
        )
        assert (everything - NUMBERS["expected.block_logits"]).abs().max() < TOLERANCE
