"""The draft head against numbers that the reference implementation computed."""

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle_aot.export import load_draft
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from support.golden_cases import golden_case, relative_error

TOLERANCE = 1e-4


@torch.no_grad()
def run(draft: Eagle3Draft, tokens: Tensor, feature: Tensor, start: int) -> tuple[Tensor, Tensor]:
    input_pos = torch.arange(start, start + tokens.shape[1])
    return draft.forward_cached(draft.embed(tokens), feature, input_pos)


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
    drafts = [int(draft.draft_to_target(logits[0, -1].argmax()))]
    feature = features[:, -1:]
    for i in range(len(expected_tokens) - 1):
        logits, feature = run(draft, torch.tensor([drafts[-1:]]), feature, length + i)
        assert relative_error(logits[0, 0], case["expected.chain_logits"][i]) < TOLERANCE
        assert relative_error(feature[0, 0], case["expected.chain_features"][i]) < TOLERANCE
        drafts.append(int(draft.draft_to_target(logits[0, -1].argmax())))
    assert drafts == expected_tokens


def test_a_draft_id_and_its_offset_make_a_target_id() -> None:
    directory, _ = golden_case("eagle3_head/mha")
    draft = load_draft(directory)
    stored = load_file(directory / "model.safetensors")
    ids = torch.arange(96).view(2, 48)
    assert torch.equal(draft.draft_to_target(ids), ids + stored["d2t"].view(2, 48))
    assert torch.equal(draft.target_ids, stored["t2d"].nonzero().flatten())
