"""DFlash heads compared with recorded results of z-lab's code, and with the formulas."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.export.drafters.dflash.model import BlockView, DFlashDraft
from eagle_aot.export.loading.quantise import quantise_draft
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.step import Step, chain_step, chain_tail
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


def test_logits_are_scaled_before_they_are_capped(tmp_path: Path) -> None:
    own = {"mask_token_id": 319, "target_layer_ids": [1, 3, 4]}
    own |= {"output_multiplier": 0.5, "final_logit_softcapping": 3.0}
    _, target, draft = dflash_pair(copied_head(tmp_path, dflash_config=own))
    wanted = 3 * (NUMBERS["expected.block_logits"] * 0.5 / 3).tanh()
    assert (block(draft, target) - wanted).abs().max() < TOLERANCE


def test_a_reduced_vocabulary_has_the_logits_of_its_tokens(tmp_path: Path) -> None:
    ids = [*range(300, 20, -3), 5]
    _, target, draft = dflash_pair(as_speculators(tmp_path, ids))
    assert draft.target_ids.tolist() == ids
    wanted = NUMBERS["expected.block_logits"][:, ids]
    assert (block(draft, target) - wanted).abs().max() < TOLERANCE


@pytest.mark.parametrize(("causal", "more"), [(True, {}), (False, {}), (True, {"is_causal": True})])
@pytest.mark.parametrize("rows", [6, 16])
def test_sliding_layers_see_their_window(
    rows: int, causal: bool, more: dict[str, bool], tmp_path: Path
) -> None:
    """Counted from each row. Within the block it sees the rows before it, or all rows; full layers
    see all, unless the config says otherwise."""
    own = {"mask_token_id": 319, "target_layer_ids": [1, 3, 4], "causal": causal}
    kinds = ["sliding_attention", "full_attention"]
    changes = {"layer_types": kinds, "sliding_window": WINDOW, "block_size": rows, **more}
    head = copied_head(tmp_path, dflash_config=own, **changes)
    _, target, draft = dflash_pair(head)
    slots = len(TOKENS)
    place, slot = slots + torch.arange(rows).unsqueeze(1), torch.arange(slots + rows)
    ahead = 1 if causal else WINDOW
    sees = (place - slot < WINDOW) & (slot - place < ahead)
    everything = torch.ones(rows, slots + rows, dtype=torch.bool)
    masks = [sees, slot <= place if more else everything]
    wanted = SlowHead(head).logits(NUMBERS["expected.taps"], int(BONUS), rows, masks)
    assert (block(draft, target, rows) - wanted).abs().max() < TOLERANCE
    if rows == 6 and not causal:  # the formulas are those of the case
        whole = SlowHead(head).logits(NUMBERS["expected.taps"], int(BONUS), rows, [everything] * 2)
        assert (whole - NUMBERS["expected.block_logits"]).abs().max() < TOLERANCE


@pytest.mark.parametrize("window", [0, WINDOW, 5])
@pytest.mark.parametrize("use_splitk", [False, True])
def test_a_row_of_a_block_attends_to_its_window_and_its_block(
    use_splitk: bool, window: int
) -> None:
    """In a sequence of two, where the caches hold later keys of an earlier text, and beside a row
    of padding."""
    torch.manual_seed(0)
    heads, kv_heads, dim, before, rows = 4, 2, 16, 150, 6
    cache = CacheSpec(256, torch.bfloat16, sequences=2).cache(kv_heads, dim, window)
    for buffer in (cache.k, cache.v):
        buffer.normal_()
    places = torch.arange(before, before + rows)
    positions = torch.stack((places, torch.full_like(places, -1)))
    step = Step(positions, torch.tensor([1, 0]), chain_tail(positions), use_splitk=use_splitk)
    q = torch.randn(1, 2 * rows, heads, dim, dtype=torch.bfloat16)
    attended = BlockView(step, cache).attend(cache, q, 0.25)[0, :rows]
    for row, place in enumerate(places.tolist()):
        seen = torch.arange(before + rows)
        if window:
            seen = seen[(place - seen < window) & (seen - place < window)]
        slots = cache.slots + cache.physical(seen)
        k, v = (x[:, slots].double().repeat_interleave(2, dim=0) for x in (cache.k, cache.v))
        scores = (q[0, row].double().unsqueeze(1) @ k.mT * 0.25).softmax(-1)
        assert torch.allclose(attended[row].double(), (scores @ v).squeeze(1), atol=2e-2)
