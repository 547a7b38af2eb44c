"""DFlash as a kind of drafter: description, dummy and self-test of a head."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.description import DUMMY_TAPS, Facts, reading_facts
from eagle_aot.export.drafters.dflash.checkpoint import (
    Z_LAB,
    DFlashFiles,
    check_tensors,
    load_dflash,
    parameter_shapes,
    read_files,
    recognise,
)
from eagle_aot.export.drafters.dflash.methods import methods
from eagle_aot.export.drafters.dflash.model import DFlashConfig, DFlashDraft
from eagle_aot.export.drafters.head_tensors import EMBEDDING, TABLES, read_target_ids
from eagle_aot.export.drafters.target_facts import TargetFacts, check_target_sizes
from eagle_aot.export.pair import Pair
from eagle_aot.export.self_test.text import Reading, TargetText
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.rope import Rope
from eagle_aot.targets.decoder.weights import assign
from eagle_aot.targets.pre_norm.config import FULL, SLIDING, PreNormConfig
from eagle_aot.targets.step import MAX_ROWS, Step, chain_step

__all__ = ["claims", "describe", "load", "methods", "readings", "without_checkpoint"]

LAYERS = (SLIDING,) * 4 + (FULL,)
HEADS, KV_HEADS, HEAD_DIM, WINDOW, BLOCK = 32, 8, 128, 2048, 16
INNER = 17408
"""Sizes of z-lab's head for Qwen3.6-27B, which a dummy has if its target is large enough."""
TAPS = 5


def claims(checkpoint: Checkpoint) -> bool:
    """Return whether the config names DFlash or a related kind, which `load` refuses by name."""
    return recognise(checkpoint) is not None


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind of DFlash heads is read and made: `read` gets a checkpoint and other taps, if any;
    `dummy` returns the config of a random head for a target."""

    model: type[DFlashDraft]
    read: Callable[[Checkpoint, Sequence[int] | None], DFlashFiles]
    dummy: Callable[[TapTarget], DFlashConfig]


def load(
    checkpoint: Checkpoint,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    tap_layers: Sequence[int] | None,
    form: Form | None = None,
) -> tuple[DFlashDraft, Facts]:
    """Load a head, as `HeadKind` says; `form` is another kind's."""
    form = form or DFLASH_FORM
    files = form.read(checkpoint, tap_layers)
    taps, layout = files.config.tap_layers, {"value": files.layout, "source": files.recognised_by}
    head = sizes(files.config)
    facts = reading_facts(taps, files.tap_source, layout=layout, head=head, flags={})
    make = partial(form.model, files.config, dtype, caches)
    return load_dflash(make, files, target, dtype), facts


def describe(
    checkpoint: Checkpoint,
    target: TargetFacts | None,
    tap_layers: Sequence[int] | None,
    form: Form | None = None,
) -> Facts:
    """Describe a head as `HeadKind` says. Only the maps are read of its tensors."""
    form = form or DFLASH_FORM
    files = form.read(checkpoint, tap_layers)
    config = files.config
    if target is not None:
        check_target_sizes(target, config.target_hidden_size, config.vocab_size, target.name)
    with torch.device("meta"):
        check_tensors(form.model(config, torch.float32, CacheSpec(1, torch.float32)), files)
    read_target_ids(files, config.vocab_size, config.draft_vocab_size)
    return {
        "directory": str(files.directory),
        "layout": {"value": files.layout, "source": files.recognised_by},
        "files": [path.name for path in checkpoint.files()],
        "sizes": sizes(config),
        "taps": {"value": list(config.tap_layers), "source": files.tap_source},
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "sliding layers": "causal within a block" if config.causal_windows else "see both ways",
        "chain_len": config.drafts,
        "tables": {name: "its own" if name in files.names else "the target's" for name in TABLES},
    }


def sizes(config: DFlashConfig) -> Facts:
    """Return the geometry of a head, without its taps."""
    fields = asdict(config)
    layers = fields.pop("layers")
    rope = layers.pop("rope")
    del layers["tie_word_embeddings"], layers["qk_norm"], layers["biased"], fields["tap_layers"]
    layers["layer_types"] = list(layers["layer_types"])
    return {**layers, **fields, "rope_theta": rope["theta"], "rope_type": rope["rope_type"]}


def without_checkpoint(
    spec: TargetSpec,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    form: Form | None = None,
) -> tuple[DFlashDraft, Facts]:
    """Make a random head that shares the target's tables, as public heads do; one with a reduced
    vocabulary, of the first ids, has an output table of its own."""
    form = form or DFLASH_FORM
    draft = form.model(form.dummy(target), dtype, caches)
    reduced = draft.config.draft_vocab_size < target.vocab_size
    shared = {EMBEDDING} if reduced else set(TABLES)
    for name, shape in parameter_shapes(draft).items():
        if name not in shared and len(shape) > 1:
            assign(draft, name, torch.randn(shape, dtype=dtype) * shape[-1] ** -0.5)
    assert isinstance(target.embed_weight, nn.Parameter)  # a copy would be moved a second time
    draft.embed_tokens.weight = target.embed_weight
    if not reduced:
        table = target.lm_head_weight
        is_parameter = isinstance(table, nn.Parameter)
        draft.lm_head.weight = table if is_parameter else nn.Parameter(table, False)
    layout = {"value": Z_LAB, "source": "--drafter"}
    facts = reading_facts(
        draft.tap_layers, DUMMY_TAPS, layout=layout, head=sizes(draft.config), flags={}
    )
    return draft.eval(), facts


def dummy_config(target: TapTarget) -> DFlashConfig:
    """Return the config of a random head for a target."""
    hidden = target.hidden_size
    heads = max(min(HEADS, hidden // HEAD_DIM), 1)
    layers = PreNormConfig(
        vocab_size=target.vocab_size,
        hidden_size=hidden,
        intermediate_size=min(INNER, 4 * hidden),
        layer_types=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // (HEADS // KV_HEADS), 1),
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-6,
        rope=Rope(theta=1e7),
        tie_word_embeddings=False,
        qk_norm=True,
        sliding_window=WINDOW,
    )
    return DFlashConfig(
        layers=layers,
        target_hidden_size=hidden,
        tap_layers=_dummy_taps(target.num_hidden_layers),
        draft_vocab_size=target.vocab_size,
        block_size=BLOCK,
        mask_token_id=target.vocab_size - 1,
    )


DFLASH_FORM = Form(DFlashDraft, read_files, dummy_config)


def _dummy_taps(num_layers: int) -> tuple[int, ...]:
    """Return boundaries from the second to the fourth last layer at equal distances, as in public
    heads."""
    if num_layers < TAPS + 4:
        taps = tuple(range(1, num_layers))[:TAPS]
        if not taps:
            raise SettingError("--drafter dflash: a target of one layer has nothing to tap")
        return taps
    return tuple(2 + round(i * (num_layers - 5) / (TAPS - 1)) for i in range(TAPS))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DFlashReading(Reading):
    """A loaded head, which drafts one block after another from its caches."""

    draft: DFlashDraft

    @torch.no_grad()
    def chain_logits(self, text: TargetText, steps: int) -> Iterator[Tensor]:
        draft, device = self.draft, text.tokens.device
        features = self.aligned(draft.fuse(text.taps(draft.tap_layers)))
        config, stored, logits = draft.config, 0, []
        rows = max(config.block_size, steps + config.first_draft)
        draft.reset_cache()
        for anchor in range(text.first_anchor, text.slots):
            for slots in torch.arange(stored, anchor + 1, device=device).split(MAX_ROWS):
                draft.store(features[:, slots], chain_step(slots))
            stored = anchor + 1
            block = torch.arange(stored, stored + rows, device=device)
            places = (stored + torch.arange(rows, device=device)).clamp(max=text.slots + 1)
            logits.append(self._logits(text.tokens[:, places], chain_step(block))[:steps])
        yield from torch.stack(logits, dim=1)

    def _logits(self, tokens: Tensor, step: Step) -> Tensor:
        """Return the logits float32 [N, Vd] of the drafts of a block at `step`, whose places have
        the target's `tokens` int64 [1, T]; the first one is the bonus token."""
        return self.draft.run(tokens, step)[0, 1:]


def readings(pair: Pair) -> Iterator[DFlashReading]:
    """Yield the only reading: the head as it was loaded."""
    assert isinstance(pair.draft, DFlashDraft)
    yield DFlashReading(target_ids=pair.draft.target_ids, draft=pair.draft)
