"""The draft head against a float64 reference and the reference implementation, and its cache."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.export import load_draft
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.targets.step import SCRATCH_SLOTS
from support.golden_cases import golden_case, relative_error
from support.heads.files import HeadShape, head_tensors, write_speculators
from support.heads.reference import ReferenceHead

SLOTS = 17
PLAIN = HeadShape()
TOLERANCE = 1e-4
"""Relative, of float32 against the reference implementation."""


def load(directory: Path, shape: HeadShape, dtype: torch.dtype = torch.float32) -> Eagle3Draft:
    return load_draft(write_speculators(directory, shape), max_seq_len=32, dtype=dtype)


def inputs(shape: HeadShape) -> tuple[Tensor, Tensor]:
    """Target tokens [1, SLOTS] and taps [1, SLOTS, num_taps * Ht]."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, shape.vocab, (1, SLOTS), generator=generator)
    width = shape.num_taps * shape.target_hidden
    return tokens, 2 * torch.randn(1, SLOTS, width, generator=generator) + 1


@torch.no_grad()
@torch.no_grad()
def run(
    draft: Eagle3Draft, tokens: Tensor, feature: Tensor, start: int = 0
) -> tuple[Tensor, Tensor]:
    input_pos = torch.arange(start, start + tokens.shape[1])
    return draft.forward_cached(draft.embed(tokens), feature, input_pos)


@pytest.mark.parametrize("shape", [PLAIN, HeadShape(num_layers=2)], ids=["one", "two"])
def test_cached_chunks_and_single_steps_equal_a_stateless_pass(
    tmp_path: Path, shape: HeadShape
) -> None:
    """The recurrent steps feed the head its own features, which `fc` never sees."""
    draft = load(tmp_path, shape)
    reference = ReferenceHead(head_tensors(shape), shape)
    tokens, taps = inputs(shape)
    with torch.no_grad():
        features = draft.fuse(taps)
    draft.fc.register_forward_pre_hook(lambda *_: pytest.fail("fc ran on a recurrent feature"))
    logits, recurrent = run(draft, tokens[:, :9], features[:, :9])
    table = reference.tensors["embed_tokens.weight"]
    paired = features[:, :9]
    for slot in range(9, SLOTS):
        paired = torch.cat((paired, recurrent[:, -1:]), dim=1)
        logits, recurrent = run(draft, tokens[:, slot : slot + 1], recurrent[:, -1:], slot)
        expected_logits, expected = reference.run(table[tokens[0, : slot + 1]], paired[0])
        assert relative_error(logits[0, -1], expected_logits[-1]) < 1e-5
        assert relative_error(recurrent[0, -1], expected[-1]) < 1e-5


@pytest.mark.parametrize("shape", [PLAIN, HeadShape(num_layers=2)], ids=["one", "two"])
def test_rejected_slots_leave_no_trace_and_reset_isolates(tmp_path: Path, shape: HeadShape) -> None:
    draft, clean = load(tmp_path, shape), load(tmp_path, shape)
    tokens, taps = inputs(shape)
    with torch.no_grad():
        features = draft.fuse(taps)
    expected = (
        run(clean, tokens[:, :5], features[:, :5]),
        run(clean, tokens[:, 5:8], features[:, 5:8], 5),
    )
    run(draft, tokens, features.flip(1))
    draft.reset_cache()
    with pytest.raises(SettingError, match="leaves a gap"):
        run(draft, tokens[:, :1], features[:, :1], 1)
    first = run(draft, tokens[:, :5], features[:, :5])
    run(draft, tokens[:, 8:], features[:, 8:], 5)
    second = run(draft, tokens[:, 5:8], features[:, 5:8], 5)
    for found, wanted in zip((*first, *second), (*expected[0], *expected[1]), strict=True):
        assert torch.equal(found, wanted)


def test_positions_beyond_the_cache_are_refused(tmp_path: Path) -> None:
    draft, (tokens, taps) = load(tmp_path, PLAIN), inputs(PLAIN)
    end = 32 + SCRATCH_SLOTS
    draft.positions.valid = end
    with torch.no_grad(), pytest.raises(ValueError, match=f"beyond the cache of {end}"):
        run(draft, tokens[:, :1], draft.fuse(taps)[:, :1], end)


def test_a_bfloat16_load_keeps_float32_angles_and_a_bfloat16_cache(tmp_path: Path) -> None:
    shape = HeadShape(rope_theta=1e6, head_dim=16)
    draft = load(tmp_path, shape, torch.bfloat16)
    inv_freq = draft.get_buffer("layers.0.self_attn.rotary.inv_freq")
    assert inv_freq.dtype == torch.float32
    exact = 1e6 ** (-torch.arange(8, dtype=torch.float64) / 8)
    assert relative_error(inv_freq, exact) < 1e-6
    assert draft.kv_cache.k.dtype == draft.kv_cache.v.dtype == torch.bfloat16
    assert {p.dtype for p in draft.parameters()} == {torch.bfloat16}
    tokens, taps = inputs(shape)
    with torch.no_grad():
        logits, recurrent = run(draft, tokens, draft.fuse(taps.bfloat16()))
    assert logits.dtype == torch.float32 and recurrent.dtype == torch.bfloat16
    reference = ReferenceHead(head_tensors(shape), shape)
    table = reference.tensors["embed_tokens.weight"]
    expected, _ = reference.run(table[tokens[0]], reference.fuse(taps[0]))
    assert relative_error(logits[0], expected) < 0.05


@pytest.mark.parametrize("chunk", [64, 7, 1])
@pytest.mark.parametrize("name", ["mha", "gqa_bin", "wide_target"])
def test_seed_and_chain_match_the_reference_implementation(name: str, chunk: int) -> None:
    directory, case = golden_case(f"eagle3_head/{name}")
    draft = load_draft(directory, max_seq_len=64)
    with torch.no_grad():
        fused = draft.fuse(case["input.taps"][None])
    assert relative_error(fused[0], case["expected.seed_fused"]) < TOLERANCE
    tokens = case["input.tokens"][None]
    length = tokens.shape[1]
    steps = [
        run(draft, tokens[:, i : i + chunk], fused[:, i : i + chunk], i)
        for i in range(0, length, chunk)
    ]
    logits, features = (torch.cat(part, dim=1) for part in zip(*steps, strict=True))
    assert relative_error(logits[0], case["expected.seed_logits"]) < TOLERANCE
    assert relative_error(features[0], case["expected.seed_feature"]) < TOLERANCE

    expected_tokens = case["expected.chain_tokens"].tolist()
    drafts = [int(draft.target_ids[logits[0, -1].argmax()])]
    feature = features[:, -1:]
    for i in range(len(expected_tokens) - 1):
        logits, feature = run(draft, torch.tensor([drafts[-1:]]), feature, length + i)
        assert relative_error(logits[0, 0], case["expected.chain_logits"][i]) < TOLERANCE
        assert relative_error(feature[0, 0], case["expected.chain_features"][i]) < TOLERANCE
        drafts.append(int(draft.target_ids[logits[0, -1].argmax()]))
    assert drafts == expected_tokens


def test_a_draft_id_and_its_offset_make_a_target_id() -> None:
    directory, _ = golden_case("eagle3_head/mha")
    draft = load_draft(directory)
    stored = load_file(directory / "model.safetensors")
    ids = torch.arange(96).view(2, 48)
    assert torch.equal(draft.target_ids[ids], ids + stored["d2t"].view(2, 48))
    assert torch.equal(draft.target_ids, stored["t2d"].nonzero().flatten())
