"""Gemma 4 assistants compared with recorded results of transformers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle_aot.export.drafters.gemma4_assistant.checkpoint import load_assistant, read_files
from eagle_aot.export.drafters.gemma4_assistant.model import Gemma4Assistant
from eagle_aot.export.loading.quantise import quantise_draft
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.attention import MASKED
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.gemma4.config import FULL, SLIDING
from eagle_aot.targets.step import Step, chain_tail
from support.golden_cases import golden_case
from support.heads.assistants import SEQ_LEN, assistant_pair

TOLERANCE = 1e-4
CHUNK = 16
Chain = list[tuple[int, Tensor, Tensor]]


@torch.no_grad()
def chain(
    draft: Gemma4Assistant, target: Gemma4Target, bonus: Tensor, state: Tensor, position: int
) -> Chain:
    """Draft five tokens after a position: token, logits [V] and state [Bt] of each."""
    positions = torch.tensor([[position]])
    step = Step(positions, torch.zeros(1, dtype=torch.int64), chain_tail(positions))
    token, state, found = bonus.view(1, 1), state.view(1, 1, -1), []
    for _ in range(5):
        logits, state = draft.run(target, token, state, step)
        token = logits.argmax(-1)
        found.append((int(token), logits[0, 0], state[0, 0]))
    return found


@pytest.mark.parametrize("name", ["dense_k_eq_v", "two_layers"])
@torch.no_grad()
def test_a_chain_after_our_own_target_matches_transformers(name: str) -> None:
    directory, case = golden_case(f"mtp/{name}")
    _, target, draft = assistant_pair(directory)
    tokens = case["input.tokens"].unsqueeze(0)
    states, last = [], tokens.shape[1]
    for start in range(0, last, CHUNK):
        places = torch.arange(start, min(start + CHUNK, last))
        _, taps = target.forward_logits_taps(tokens[:, places], places)
        states.append(draft.fuse(taps))
    found = torch.cat(states, dim=1)[0]
    assert (found - case["expected.target_states"]).abs().max() < TOLERANCE
    drafts = chain(draft, target, case["expected.bonus"], found[-1], last - 1)
    assert [token for token, _, _ in drafts] == case["expected.chain_tokens"].tolist()
    for i, (_, logits, state) in enumerate(drafts):
        assert (logits - case["expected.chain_logits"][i]).abs().max() < TOLERANCE
        assert (state - case["expected.chain_states"][i]).abs().max() < TOLERANCE


@torch.no_grad()
def test_an_assistant_in_int8_drafts_the_same_tokens() -> None:
    """All its linears; the target stays what it is."""
    directory, case = golden_case("mtp/dense_k_eq_v")
    _, target, draft = assistant_pair(directory)
    quantise_draft(draft, target, "int8")
    assert not [m for m in draft.modules() if isinstance(m, torch.nn.Linear)]
    tokens = case["input.tokens"].unsqueeze(0)
    for start in range(0, tokens.shape[1], CHUNK):
        places = torch.arange(start, min(start + CHUNK, tokens.shape[1]))
        _, taps = target.forward_logits_taps(tokens[:, places], places)
    last = draft.fuse(taps)[0, -1]
    drafts = chain(draft, target, case["expected.bonus"], last, tokens.shape[1] - 1)
    assert [token for token, _, _ in drafts] == case["expected.chain_tokens"].tolist()
    assert 0 < (drafts[0][1] - case["expected.chain_logits"][0]).abs().max() < 0.1


@torch.no_grad()
def test_a_chain_that_scores_only_chosen_clusters_matches_transformers() -> None:
    """After keys and values of the case, whose target shares some among layers."""
    directory, case = golden_case("mtp/shared_kv_centroids")
    files = read_files(Checkpoint(directory / "assistant"))
    target = filled_target(directory, case, files.config.text.sliding_window)
    draft = load_assistant(files, target, torch.float32, CacheSpec(SEQ_LEN, torch.float32))
    position = len(case["input.tokens"]) - 1
    state = case["expected.target_states"][-1]
    drafts = chain(draft, target, case["expected.bonus"], state, position)
    assert [token for token, _, _ in drafts] == case["expected.chain_tokens"].tolist()
    for i, (_, logits, following) in enumerate(drafts):
        wanted = case["expected.chain_logits"][i]
        scored = wanted > wanted.min()
        assert scored.sum() == 6 * 512 // 32
        assert torch.equal(scored, logits > MASKED / 2)
        assert (logits - wanted)[scored].abs().max() < TOLERANCE
        assert (following - case["expected.chain_states"][i]).abs().max() < TOLERANCE


def filled_target(directory: Path, case: dict[str, Tensor], window: int) -> Gemma4Target:
    """Two layers, one of each kind, whose caches hold what the case's target stored."""
    _, plain, _ = assistant_pair(directory.parent / "two_layers")
    tables = load_file(directory / "target" / "model.safetensors")
    table = tables["model.embed_tokens.weight"].float()
    sliding, full = (case[f"expected.kv.{kind}.key"] for kind in (SLIDING, FULL))
    config = replace(
        plain.config, vocab_size=table.shape[0], hidden_size=table.shape[1], sliding_window=window,
        head_dim=sliding.shape[2], num_key_value_heads=sliding.shape[0],
        global_head_dim=full.shape[2], num_global_key_value_heads=full.shape[0],
    )  # fmt: skip
    target = Gemma4Target(config, torch.float32, CacheSpec(SEQ_LEN, torch.float32))
    target.embed_tokens.weight = torch.nn.Parameter(table)
    for kind, layer in ((SLIDING, target.layers[0]), (FULL, target.layers[1])):
        cache = layer.get_submodule("self_attn.kv_cache")
        assert isinstance(cache, KVCache)
        places = cache.physical(torch.arange(sliding.shape[1]))
        for buffer, part in ((cache.k, "key"), (cache.v, "value")):
            buffer.index_copy_(1, places, case[f"expected.kv.{kind}.{part}"])
    return target
