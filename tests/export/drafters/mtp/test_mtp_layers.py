"""An MTP layer compared with transformers' modules, after our own target, and in fewer bits."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM

from eagle_aot.export.drafters.mtp import kind
from eagle_aot.export.drafters.mtp.model import MtpDraft
from eagle_aot.export.loading.quantise import quantise_draft
from eagle_aot.export.self_test.text import continue_greedily
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.qwen3_5.model import HybridDecoder
from eagle_aot.targets.step import PromptChunk, chain_step
from support.heads.mtp import MtpText, ReferenceMtp, random_mtp, save_mtp
from support.random_pair import qwen3_5

TOLERANCE = 1e-4
LENGTH, STEPS = 40, 5
TEXT = torch.randint(1024, (LENGTH,), generator=torch.Generator().manual_seed(4)).tolist()
Reference = tuple[Qwen3_5ForCausalLM, ReferenceMtp]
Loaded = tuple[HybridDecoder, MtpDraft]


@pytest.fixture(scope="module")
def reference() -> Reference:
    model = qwen3_5()
    return model, random_mtp(model)


@pytest.fixture(scope="module")
def directory(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mtp(tmp_path_factory.mktemp("mtp"), *reference)


@pytest.fixture
def loaded(directory: Path) -> Loaded:
    return load(directory)


def load(directory: Path, target_dir: Path | None = None) -> Loaded:
    target = load_target(target_dir or directory, 96)
    assert isinstance(target, HybridDecoder)
    caches = CacheSpec(96, torch.float32)
    draft, _ = kind.load(Checkpoint(directory), target, torch.float32, caches, None)
    target.set_eagle_tap_layers(draft.tap_layers)
    return target, draft


@torch.no_grad()
def chain(loaded: Loaded, text: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Draft after a text, whose last token is the bonus token: logits [T, V] and states [T, H] of
    all its slots, then of each draft's slot."""
    target, draft = loaded
    _, taps = target.run(
        torch.tensor([text[:-1]]), PromptChunk(torch.arange(len(text) - 1), torch.zeros(1).long())
    )
    tokens, states, found, first = torch.tensor([text[1:]]), draft.fuse(taps), [], 0
    for _ in range(STEPS):
        slots = torch.arange(first, first + tokens.shape[1])
        logits, states = draft.run(target, tokens, states, chain_step(slots))
        found.append((logits[0], states[0]))
        tokens, states, first = logits[:, -1:].argmax(-1), states[:, -1:], first + len(slots)
    return found


def test_a_chain_after_our_own_target_matches_transformers(
    reference: Reference, loaded: Loaded
) -> None:
    """Slots of a text, and those of drafts, which have states of the layer itself."""
    slow = MtpText(*reference, (), TEXT[:-1])
    features, following = slow.fused(), TEXT[1:]
    expected = slow.run(following, features)
    for logits, states in chain(loaded, TEXT):
        assert (logits - expected[0][-len(logits) :]).abs().max() < TOLERANCE
        assert (states - expected[1][-len(states) :]).abs().max() < TOLERANCE
        assert len(logits) == (LENGTH - 1 if following == TEXT[1:] else 1)
        following = [*following, int(expected[0][-1].argmax())]
        features = torch.cat((features, expected[1][-1:]))
        expected = slow.run(following, features)


def test_each_part_of_the_wiring_matters(reference: Reference, directory: Path) -> None:
    """States before the final norm, and halves in the other order, give other logits."""
    slow = MtpText(*reference, (), TEXT[:-1])
    expected, _ = slow.run(TEXT[1:], slow.fused())
    target, draft = load(directory)
    draft.target_norm = nn.Identity()  # type: ignore[assignment]
    other = load(directory)[1]
    other.mtp.fc.weight = nn.Parameter(other.mtp.fc.weight.roll(64, dims=1))
    for wrong in (draft, other):
        found, _ = chain((target, wrong), TEXT)[0]
        assert (found - expected).abs().max() > 0.1


@torch.no_grad()
def test_a_prompt_is_stored_as_it_is_run(loaded: Loaded) -> None:
    """By the method for many rows, from which nothing but keys and values remains."""
    target, draft = loaded
    run = chain(loaded, TEXT)
    cache = draft.kv_cache
    stored = cache.k.clone(), cache.v.clone()
    _, taps = target.run(
        torch.tensor([TEXT[:-1]]), PromptChunk(torch.arange(LENGTH - 1), torch.zeros(1).long())
    )
    draft.reset_cache()
    rows = PromptChunk(torch.arange(LENGTH - 1), torch.zeros(1, dtype=torch.int64))
    draft.store(target, torch.tensor([TEXT[1:]]), draft.fuse(taps), rows)
    for kept, wanted in zip((cache.k, cache.v), stored, strict=True):
        assert (kept - wanted)[:, : LENGTH - 1].abs().max() < TOLERANCE
    assert len(run) == STEPS


@pytest.mark.parametrize(("bits", "error"), [("int8", 0.05), ("int4", 2.0)])
def test_a_layer_in_fewer_bits_drafts_nearly_the_same(
    bits: str, error: float, loaded: Loaded, directory: Path
) -> None:
    """All its linears, and its copy of the output table; the target stays what it is."""
    target, draft = loaded
    quantise_draft(draft, target, bits, own_table=True)
    assert not [m for m in draft.modules() if isinstance(m, nn.Linear)]
    assert isinstance(target.lm_head, nn.Linear)
    found, wanted = (chain(pair, TEXT)[0][0] for pair in (loaded, load(directory)))
    assert 0 < (found - wanted).abs().max() < error


def test_a_self_test_drafts_the_targets_text(loaded: Loaded) -> None:
    """Each anchor's chain gets the tokens of the text, and states of its own."""
    target, draft = loaded
    text = continue_greedily(target, TEXT[:20], draft.tap_layers, 12, (), torch.device("cpu"))
    reading = kind.MtpReading(target_ids=draft.target_ids, draft=draft, target=target)
    steps = list(reading.chain_logits(text, 3))
    tokens, states = text.tokens[0], draft.fuse(text.taps(draft.tap_layers))
    anchors = range(text.first_anchor, text.slots)
    assert [step.shape for step in steps] == [(len(anchors), 1024)] * 3
    for row, anchor in enumerate(anchors):
        following, features = tokens[1 : anchor + 2], states[:, : anchor + 1]
        for step in steps[: len(tokens) - anchor - 2]:
            logits, new = draft.run(
                target, following[None], features, chain_step(torch.arange(len(following)))
            )
            assert (step[row] - logits[0, -1]).abs().max() < TOLERANCE
            following = tokens[1 : len(following) + 2]
            features = torch.cat((features, new[:, -1:]), dim=1)
