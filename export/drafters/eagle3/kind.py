"""EAGLE-3 and P-EAGLE heads as a kind of drafter: description and dummy of a head.

`parallel` is true for a P-EAGLE head, whose files are EAGLE-3's with a mask.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch
from torch import nn

from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.description import DUMMY_TAPS, Facts, reading_facts
from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.load import check_shapes, load_layout
from eagle_aot.export.drafters.eagle3.methods import methods
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft, ParallelDraft, new_draft
from eagle_aot.export.drafters.eagle3.reading.geometry import read_geometry, resolve_tap_layers
from eagle_aot.export.drafters.eagle3.reading.layout import HeadLayout, read_layout
from eagle_aot.export.drafters.eagle3.reading.taps import TapChoice
from eagle_aot.export.drafters.eagle3.self_test import readings
from eagle_aot.export.drafters.head_rope import describe_rope
from eagle_aot.export.drafters.head_tensors import TABLES, read_target_ids
from eagle_aot.export.drafters.target_facts import TargetFacts, check_target_sizes
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.pre_norm.model import PreNormDecoder

__all__ = ["claims", "describe", "load", "methods", "readings", "without_checkpoint"]

SIZES = (
    *("hidden_size", "target_hidden_size", "num_taps", "num_layers", "num_heads", "num_kv_heads"),
    *("head_dim", "intermediate_size", "rms_norm_eps", "hidden_act"),
)
MIN_LAYERS = 3
PUBLIC_DRAFT_VOCAB = 32000
PARALLEL_LAYERS = 4


def claims(checkpoint: Checkpoint) -> bool:
    """Return True: what is not an EAGLE-3 head is refused by name when it is read."""
    return True


def load(
    checkpoint: Checkpoint,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    tap_layers: Sequence[int] | None,
    parallel: bool = False,
) -> tuple[Eagle3Draft, Facts]:
    """Load a head, as `HeadKind` says."""
    num_layers = target.num_hidden_layers
    head = read_layout(checkpoint, num_layers, tap_layers, parallel)
    draft = load_layout(head, target, dtype, caches)
    choice = resolve_tap_layers(head, draft.config.num_taps, num_layers)
    layout = {"value": head.trainer, "source": head.recognised_by}
    flags = {name: asdict(flag) for name, flag in sorted(head.flags.items())}
    sizes = {name: value for name, value in geometry(draft.config).items() if name not in flags}
    return draft, reading_facts(
        choice.boundaries, choice.reason, layout=layout, head=sizes, flags=flags
    )


def describe(
    checkpoint: Checkpoint,
    target: TargetFacts | None,
    tap_layers: Sequence[int] | None,
    parallel: bool = False,
) -> Facts:
    """Describe a head as `HeadKind` says. Of its tensors the maps are read and, with a target, the
    tables."""
    num_layers = None if target is None else target.num_layers
    head = read_layout(checkpoint, num_layers, tap_layers, parallel)
    if target is not None:
        plain = read_geometry(head, None)
        check_target_sizes(target, plain.target_hidden_size, plain.vocab_size, target.name)
    config = read_geometry(head, num_layers)
    with torch.device("meta"):
        check_shapes(new_draft(config, torch.float32, CacheSpec(1, torch.float32)), head)
    names = (*SIZES, "mask_token_id") if parallel else SIZES
    return {
        "directory": str(checkpoint.directory),
        "layout": {"value": head.trainer, "source": head.recognised_by},
        "files": [path.name for path in head.checkpoint.files()],
        "sizes": {name: getattr(config, name) for name in names},
        "rope": describe_rope(config.rope, head.layer),
        "vocabulary": _vocabulary(config, head),
        "taps": _taps(resolve_tap_layers(head, config.num_taps, num_layers)),
        "options": {name: asdict(flag) for name, flag in sorted(head.flags.items())},
        "tables": {name: _table(head, name, target) for name in TABLES},
        "chain_len": config.default_chain_len,
    }


def geometry(config: DraftConfig) -> Facts:
    """Return all fields of a config but its taps."""
    return {name: value for name, value in asdict(config).items() if name != "tap_layers"}


def _taps(choice: TapChoice) -> Facts:
    if choice.boundaries:
        return {"value": list(choice.boundaries), "source": choice.reason}
    ways = "--target-dir or --target-model gives the defaults of its depth"
    return {"value": None, "source": f"{choice.reason}; {ways}"}


def _vocabulary(config: DraftConfig, head: HeadLayout) -> Facts:
    ids = read_target_ids(head, config.vocab_size, config.draft_vocab_size)
    order = "ascending" if bool((ids.diff() > 0).all()) else "unsorted"
    source = f"d2t, {order}" if "d2t" in head.names else "no d2t"
    return {
        "target": config.vocab_size,
        "draft": config.draft_vocab_size,
        "source": source + (", t2d agrees" if "t2d" in head.names else ""),
    }


def _table(head: HeadLayout, name: str, target: TargetFacts | None) -> str:
    """Return whose table a head uses, and whether it needs memory of its own."""
    if name not in head.names:
        return "the target's"
    table = None if target is None else target.table(name)
    if table is None:
        return "its own"
    stored = head.checkpoint.tensor(head.stored(name))
    # Tables are compared in the dtype of an export for CUDA.
    equal = stored.shape == table.shape and torch.equal(stored.bfloat16(), table.bfloat16())
    return "its own, equal to the target's: stored once" if equal else "its own"


def without_checkpoint(
    spec: TargetSpec,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    parallel: bool = False,
) -> tuple[Eagle3Draft, Facts]:
    """Make a random head in the geometry of the target's shipped one, or of most public ones.

    It shares the target's embedding if their widths agree, as public heads do.
    """
    config = _dummy_config(spec, target)
    if parallel:
        mask = target.vocab_size - 1
        config = replace(config, num_layers=PARALLEL_LAYERS, mask_token_id=mask)
    draft = new_draft(config, dtype, caches).eval()
    if isinstance(draft, ParallelDraft):
        draft.set_mask(torch.randn(draft.fc.in_features, dtype=dtype))
    table = target.embed_weight
    if draft.embed_tokens.weight.shape == table.shape:
        assert isinstance(table, nn.Parameter)  # a copy would be moved a second time
        draft.embed_tokens.weight = table
    facts = reading_facts(
        draft.tap_layers, DUMMY_TAPS, layout=None, head=geometry(config), flags={}
    )
    return draft, facts


def _dummy_config(spec: TargetSpec, target: TapTarget) -> DraftConfig:
    num_layers = target.num_hidden_layers
    if spec.draft_dir is not None:
        config = read_geometry(read_layout(Checkpoint(spec.draft_dir), None), None)
    else:
        config = _public_config(target)
    if config.tap_layers and config.tap_layers[-1] <= num_layers:
        return config
    return replace(config, tap_layers=_dummy_taps(num_layers))


def _dummy_taps(num_layers: int) -> tuple[int, ...]:
    """Return the boundaries that public heads tap, or the quarters of a target with too few layers
    for that."""
    if num_layers < MIN_LAYERS:
        raise SettingError(
            f"--dummy-layers {num_layers}: the head taps 3 layers, so at least {MIN_LAYERS}"
        )
    if num_layers - 3 > num_layers // 2 > 2:
        return (2, num_layers // 2, num_layers - 3)
    return (num_layers // 4, num_layers // 2, 3 * num_layers // 4)


def _public_config(target: TapTarget) -> DraftConfig:
    """Return the geometry of public heads, which repeat their target's layer with a vocabulary of
    the most frequent tokens: RedHatAI/gemma-4-31B-it-speculator.eagle3,
    yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, AngelSlim/Qwen3-*_eagle3."""
    assert isinstance(target, Gemma4Target | PreNormDecoder)
    layer = target.config
    return DraftConfig(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        num_taps=3,
        vocab_size=target.vocab_size,
        draft_vocab_size=min(PUBLIC_DRAFT_VOCAB, target.vocab_size),
        intermediate_size=layer.intermediate_size,
        num_heads=layer.num_attention_heads,
        num_kv_heads=layer.num_key_value_heads,
        head_dim=layer.head_dim,
        norm_before_residual=True,
    )
