"""The methods of a pair, run eagerly, and the errors for parts that do not fit together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma4ForCausalLM

from eagle_aot.common.errors import PairingError
from eagle_aot.export import Pair, load_draft
from eagle_aot.export.drafters.eagle3.methods import DraftDecodeMethod
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.methods import PrefillMethod, TargetVerifyMethod
from eagle_aot.export.pair import Method
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.family import TINY_DIR
from eagle_aot.targets.step import TAIL, chain_tail
from support.gemma_oracle import VOCAB, oracle_states, random_gemma, random_tokens, save_text_layout
from support.heads.files import (
    HeadShape,
    head_tensors,
    safeailab_config,
    write_head,
    write_speculators,
)
from support.pairs import head_of

TAPS = [0, 1, 3]
SHAPE = HeadShape(vocab=VOCAB, own_embedding=False, norm_before_residual=True)
PROMPT = random_tokens(21)


@pytest.fixture(scope="module")
def model() -> Gemma4ForCausalLM:
    return random_gemma(seed=5, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def directories(
    model: Gemma4ForCausalLM, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return save_text_layout(model, root / "target"), write_speculators(root / "head", SHAPE, TAPS)


@pytest.fixture
def pair(directories: tuple[Path, Path]) -> "Methods":
    target = load_target(directories[0], 96)
    return Methods(Pair(target, load_draft(directories[1], target, 96)))


def call(
    method: Method, start: int, tokens: Sequence[int], *feature: Tensor
) -> tuple[list[int], Tensor]:
    """Run a method on a row of tokens that starts at position `start`: greedy ids, features."""
    row, input_pos = torch.tensor([list(tokens)]), torch.arange(start, start + len(tokens))
    first, positions = torch.zeros(1, dtype=torch.int64), input_pos.unsqueeze(0)
    rows = (
        (input_pos, first)
        if isinstance(method, PrefillMethod)
        else (positions, first, chain_tail(positions))
    )
    moves = (torch.full((1, TAIL), -1),) if isinstance(method, TargetVerifyMethod) else ()
    with torch.no_grad():
        logits, features = method(row, *rows, *moves, *feature)
    count = 1 if isinstance(method, PrefillMethod) else len(tokens)
    assert logits.dtype == torch.float32 and logits.shape[:2] == (1, count)
    assert features.shape[:2] == (1, len(tokens))
    ids = logits.argmax(-1)
    if isinstance(method, DraftDecodeMethod):
        ids = method.draft.target_ids[ids]
    return ids[0].tolist(), features


@dataclass(frozen=True)
class Methods:
    """Of a pair, run eagerly."""

    pair: Pair

    @property
    def prefill(self) -> Method:
        return PrefillMethod(self.pair)

    @property
    def target_verify(self) -> Method:
        return TargetVerifyMethod(self.pair)

    @property
    def draft_decode(self) -> Method:
        return DraftDecodeMethod(self.pair)


def test_target_methods_return_the_fused_taps(
    pair: Methods, directories: tuple[Path, Path], model: Gemma4ForCausalLM
) -> None:
    tokens = PROMPT[:, :8]
    _, states = oracle_states(model, tokens)
    expected = pair.pair.draft.fuse(torch.cat([states[b] for b in TAPS], dim=-1)[None])
    _, prefilled = call(pair.prefill, 0, tokens[0].tolist())
    _, verified = call(pair.target_verify, 0, tokens[0].tolist())
    for found in (prefilled, verified):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_verification_of_one_row_is_the_last_row_of_a_prefill(
    pair: Methods, model: Gemma4ForCausalLM
) -> None:
    call(pair.prefill, 0, PROMPT[0, :20].tolist())
    token = PROMPT[0, 20:].tolist()
    ids, feature = call(pair.prefill, 20, token)
    verified, verified_feature = call(pair.target_verify, 20, token)
    logits, _ = oracle_states(model, PROMPT)
    assert ids == verified == [int(logits[-1].argmax())]
    torch.testing.assert_close(feature, verified_feature, rtol=1e-4, atol=1e-5)


def test_proposals_are_target_ids_and_cached_slots_equal_one_pass(pair: Methods) -> None:
    draft, tokens = head_of(pair.pair), PROMPT[0, :9].tolist()
    feature = torch.randn(1, 9, SHAPE.hidden, generator=torch.Generator().manual_seed(0))
    ids, recurrent = call(pair.draft_decode, 0, tokens, feature)
    pair.pair.reset_cache()
    with torch.no_grad():
        embedding = draft.embed(PROMPT[:, :9])
        logits, expected = draft.forward_cached(embedding, feature, torch.arange(9))
    offsets = head_tensors(SHAPE)["d2t"]
    assert ids == [d + int(offsets[d]) for d in logits[0].argmax(-1).tolist()]
    assert torch.equal(recurrent, expected)
    pair.pair.reset_cache()
    steps = [call(pair.draft_decode, i, [t], feature[:, i : i + 1])
             for i, t in enumerate(tokens)]  # fmt: skip
    assert [id for step, _ in steps for id in step] == ids
    torch.testing.assert_close(torch.cat([r for _, r in steps], 1), recurrent, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_reset_forgets_both_caches(pair: Methods) -> None:
    target, draft = pair.pair.target, head_of(pair.pair)
    row = torch.ones(1, 1, SHAPE.hidden)
    target.forward_logits_taps(torch.tensor([[1, 2, 3]]), torch.arange(3))
    draft.forward_cached(row, row, torch.arange(1))
    pair.pair.reset_cache()
    caches = [module for module in pair.pair.modules() if isinstance(module, KVCache)]
    assert caches and not any(cache.k.any() or cache.v.any() for cache in caches)
    with pytest.raises(ValueError, match="leaves a gap"):
        target.forward_logits_taps(torch.tensor([[1]]), torch.tensor([3]))
    with pytest.raises(ValueError, match="leaves a gap"):
        draft.forward_cached(row, row, torch.tensor([1]))


def head(
    directory: Path, shape: HeadShape, target: TapTarget | None, taps: bool = True
) -> Eagle3Draft:
    config = safeailab_config(shape)
    if taps:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}
    return load_draft(write_head(directory, head_tensors(shape), config), target, 32)


@pytest.mark.parametrize(("changes", "taps", "message"), [
    ({"target_hidden": 24}, True, "hidden size is 32, the head was made for 24"),
    ({"vocab": 97}, True, "vocabulary is 96, the head was made for 97"),
    ({"own_embedding": False}, True, r"no embedding: load it with load_draft\(path, target="),
    ({}, False, r"names no tap layers: load it with load_draft\(path, target="),
])  # fmt: skip
def test_a_head_of_another_target_is_refused(
    tmp_path: Path,
    directories: tuple[Path, Path],
    changes: dict[str, Any],
    taps: bool,
    message: str,
) -> None:
    shape = replace(SHAPE, **{"own_embedding": True, **changes})
    draft = head(tmp_path, shape, None, taps)
    with pytest.raises(PairingError, match=message):
        Pair(load_target(directories[0], 32), draft)


@pytest.mark.parametrize("bad", [-1, VOCAB])
def test_a_map_beyond_the_targets_vocabulary_is_refused(
    tmp_path: Path, directories: tuple[Path, Path], bad: int
) -> None:
    draft = head(tmp_path, replace(SHAPE, own_embedding=True), None)
    draft.target_ids[3] = bad
    with pytest.raises(PairingError, match="not a matched pair"):
        Pair(load_target(directories[0], 32), draft)


def test_taps_beyond_the_target_and_other_modules_are_refused(
    tmp_path: Path, directories: tuple[Path, Path]
) -> None:
    draft = head(tmp_path, replace(SHAPE, own_embedding=True), None)
    with pytest.raises(PairingError, match="Linear is not a TapTarget module"):
        Pair(nn.Linear(1, 1), draft)  # type: ignore[arg-type]  # not a target
    draft.tap_layers = (2, 3, 5)
    with pytest.raises(ValueError, match=r"must lie in \[0, 4\]"):
        Pair(load_target(directories[0], 32), draft)


@pytest.mark.parametrize("context", [64, 128])
def test_weights_are_counted_once_and_caches_are_not(context: int) -> None:
    target = load_target("gemma4-tiny", context)
    pair = Pair(target, load_draft(TINY_DIR / "head", target, context))
    stored = {t.data_ptr(): t.nbytes for t in pair.state_dict().values()}  # caches are not
    assert 0 <= pair.weight_bytes - sum(stored.values()) < 1024, "but for scales and frequencies"
