"""An MTP layer as a kind of drafter: description, dummy and self-test."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.description import Facts, reading_facts
from eagle_aot.export.drafters.mtp.checkpoint import (
    check_tensors,
    is_target,
    load_mtp,
    new_draft,
    prefixes,
    read_files,
)
from eagle_aot.export.drafters.mtp.methods import methods
from eagle_aot.export.drafters.mtp.model import MtpDraft
from eagle_aot.export.drafters.target_facts import ANY_CONTEXT, TargetFacts, check_target_sizes
from eagle_aot.export.pair import Pair
from eagle_aot.export.self_test.text import Reading, TargetText
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import fill_dummy
from eagle_aot.targets.pre_norm.config import FULL, PreNormConfig
from eagle_aot.targets.pre_norm.model import PreNormDecoder
from eagle_aot.targets.step import MAX_ROWS, chain_step

__all__ = ["claims", "describe", "load", "methods", "readings", "without_checkpoint"]

NAME = "MTP layer"
STATE = "after the target's final norm: what its lm_head reads, as in vLLM and llama.cpp"
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps"),
)


def claims(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has tensors of an MTP layer, or is a target that should."""
    return bool(prefixes(checkpoint)) or is_target(checkpoint)


def load(
    checkpoint: Checkpoint,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    tap_layers: Sequence[int] | None,
) -> tuple[MtpDraft, Facts]:
    """Load an MTP layer, as `HeadKind` says."""
    check_no_taps(tap_layers)
    files = read_files(checkpoint, caches.max_seq_len)
    draft = load_mtp(files, target, dtype, caches)
    return draft, facts_of(draft, f"tensors {files.prefix}*")


def describe(
    checkpoint: Checkpoint, target: TargetFacts | None, tap_layers: Sequence[int] | None
) -> Facts:
    """Describe an MTP layer as `HeadKind` says; no tensor is read."""
    check_no_taps(tap_layers)
    files = read_files(checkpoint, ANY_CONTEXT)
    config = files.config
    if target is not None:
        check_target_sizes(target, config.hidden_size, config.vocab_size, target.name)
    with torch.device("meta"):
        check_tensors(new_draft(files, torch.float32, CacheSpec(1, torch.float32)), files)
    return {
        "directory": str(files.directory),
        "layout": {"value": NAME, "source": f"tensors {files.prefix}*"},
        "files": [path.name for path in checkpoint.files()],
        "sizes": sizes(config),
        "state": {"value": STATE},
        "tables": {"embed_tokens": "the target's", "lm_head": "the target's"},
    }


def facts_of(draft: MtpDraft, source: str) -> Facts:
    """Return what a manifest records of an MTP layer that `source` decided on."""
    layout = {"value": NAME, "source": source}
    return reading_facts(draft.tap_layers, STATE, layout=layout, head=sizes(draft.config), flags={})


def sizes(config: PreNormConfig) -> Facts:
    """Return the geometry of an MTP layer, and of its target."""
    return {name: getattr(config, name) for name in SIZES}


def check_no_taps(tap_layers: Sequence[int] | None) -> None:
    """Raise SettingError if taps are named."""
    if tap_layers is not None:
        raise SettingError("--tap-layers: an MTP layer reads the target's last state: leave it out")


def without_checkpoint(
    spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> tuple[MtpDraft, Facts]:
    """Make a random layer, one of the target's. Raises SettingError for a target of a family whose
    layers are not Llama's."""
    if not isinstance(target, PreNormDecoder):
        raise SettingError("--drafter mtp: no such layer is known for targets of this family")
    draft = MtpDraft(target.config, target.layer_of(FULL), dtype, caches)
    fill_dummy(draft.mtp, lambda name: None, dtype)
    return draft.with_parts_of(target), facts_of(draft, "--drafter")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MtpReading(Reading):
    """A loaded layer, which drafts one chain after another from its cache."""

    draft: MtpDraft
    target: PreNormDecoder

    @torch.no_grad()
    def chain_logits(self, text: TargetText, steps: int) -> Iterator[Tensor]:
        draft, device, stored = self.draft, text.tokens.device, 0
        states = self.aligned(draft.fuse(text.taps(draft.tap_layers)))
        chains = []
        draft.reset_cache()
        for anchor in range(text.first_anchor, text.slots):
            for slots in torch.arange(stored, anchor + 1, device=device).split(MAX_ROWS):
                logits, state = self._run(text, slots, states[:, slots])
            stored = anchor + 1
            chain = [logits[0, -1]]
            for slot in torch.arange(stored, anchor + steps, device=device):
                logits, state = self._run(text, slot.view(1), state[:, -1:])
                chain.append(logits[0, -1])
            chains.append(torch.stack(chain))
        yield from torch.stack(chains, dim=1)

    def _run(self, text: TargetText, slots: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [1, T, V] and states [1, T, H] of slots int64 [T] with the target's
        tokens."""
        tokens = text.tokens[:, (slots + 1).clamp(max=text.tokens.shape[1] - 1)]
        return self.draft.run(self.target, tokens, states, chain_step(slots))


def readings(pair: Pair) -> Iterator[MtpReading]:
    """Yield the only reading: the layer as it was loaded."""
    draft, target = pair.draft, pair.target
    assert isinstance(draft, MtpDraft) and isinstance(target, PreNormDecoder)
    yield MtpReading(target_ids=draft.target_ids, draft=draft, target=target)
