"""Gemma 4's assistant as a kind of drafter: description, dummy and self-test."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.description import Facts, reading_facts
from eagle_aot.export.drafters.gemma4_assistant.checkpoint import (
    AssistantFiles,
    check_tensors,
    load_assistant,
    parameter_shapes,
    read_files,
    recognise,
    with_target_norm,
)
from eagle_aot.export.drafters.gemma4_assistant.methods import methods
from eagle_aot.export.drafters.gemma4_assistant.model import AssistantConfig, Gemma4Assistant
from eagle_aot.export.drafters.target_facts import TargetFacts, check_target_sizes
from eagle_aot.export.pair import Pair
from eagle_aot.export.self_test.text import Reading, TargetText, run_target
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import assign
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.gemma4.config import FULL, SLIDING
from eagle_aot.targets.step import Step, chain_tail

__all__ = ["claims", "describe", "load", "methods", "readings", "without_checkpoint"]

NAME = "Gemma 4 assistant"
STATE = {
    "value": "after the target's final norm",
    "source": "what transformers feeds it: what the target's lm_head reads",
}
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "num_global_key_value_heads", "global_head_dim"),
    *("sliding_window", "vocab_size", "rms_norm_eps"),
)
HIDDEN, INNER = 1024, 8192
"""Widths of google/gemma-4-31B-it-assistant; a dummy is not wider than its target."""
LAYERS = (SLIDING, SLIDING, SLIDING, FULL)


def claims(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has an assistant's model_type, class or projections."""
    return recognise(checkpoint) is not None


def load(
    checkpoint: Checkpoint,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    tap_layers: Sequence[int] | None,
) -> tuple[Gemma4Assistant, Facts]:
    """Load an assistant, as `HeadKind` says."""
    check_no_taps(tap_layers)
    files = read_files(checkpoint)
    draft = load_assistant(files, target, dtype, caches)
    layout = {"value": NAME, "source": files.recognised_by}
    head = {**sizes(files.config), "scores": scores(files.config)}
    flags = wiring_facts(files)
    return draft, reading_facts(
        draft.tap_layers, STATE["value"], layout=layout, head=head, flags=flags
    )


def describe(
    checkpoint: Checkpoint, target: TargetFacts | None, tap_layers: Sequence[int] | None
) -> Facts:
    """Describe an assistant as `HeadKind` says. Of its tensors only tied tables are read."""
    check_no_taps(tap_layers)
    files = read_files(checkpoint)
    config = files.config
    if target is not None:
        vocab_size = config.text.vocab_size
        check_target_sizes(target, config.backbone_hidden_size, vocab_size, target.name)
    with torch.device("meta"):
        check_tensors(Gemma4Assistant(config, 1, torch.float32, CacheSpec(1, torch.float32)), files)
    has_softcap = config.text.final_logit_softcapping is not None
    return {
        "directory": str(files.directory),
        "layout": {"value": NAME, "source": files.recognised_by},
        "files": [path.name for path in checkpoint.files()],
        "sizes": sizes(config),
        "state": STATE,
        **wiring_facts(files),
        "head": scores(config),
        "softcap": "stated, and not applied" if has_softcap else "none",
        "chain_len": config.default_chain_len,
    }


def wiring_facts(files: AssistantFiles) -> Facts:
    """Return each part of the wiring with what decided it."""
    values = asdict(files.config.wiring)
    last = "the last of each kind"
    return {
        name: {"value": last if values[name] is None else values[name], "source": source}
        for name, source in files.sources.items()
    }


def sizes(config: AssistantConfig) -> Facts:
    """Return the geometry of an assistant."""
    layers: Facts = {name: getattr(config.text, name) for name in SIZES}
    return {"target_hidden_size": config.backbone_hidden_size, **layers}


def scores(config: AssistantConfig) -> str:
    """Return which part of the vocabulary is scored."""
    if config.centroids is None:
        return "dense"
    count, top_k = config.centroids
    return f"the {top_k} likeliest of {count} clusters"


def check_no_taps(tap_layers: Sequence[int] | None) -> None:
    """Raise SettingError if taps are named."""
    if tap_layers is not None:
        raise SettingError("--tap-layers: an assistant reads the target's last state: leave it out")


def without_checkpoint(
    spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> tuple[Gemma4Assistant, Facts]:
    """Make a random assistant. Raises SettingError for a target that is not Gemma 4."""
    if not isinstance(target, Gemma4Target):
        raise SettingError("--drafter gemma4-assistant: the target is no Gemma 4")
    draft = Gemma4Assistant(_dummy_config(target), target.num_hidden_layers, dtype, caches)
    draft.check_target(target)
    for name, shape in parameter_shapes(draft).items():
        if len(shape) > 1:
            assign(draft, name, torch.randn(shape, dtype=dtype) * shape[-1] ** -0.5)
    facts = reading_facts(
        draft.tap_layers,
        STATE["value"],
        layout={"value": NAME, "source": "--drafter"},
        head=sizes(draft.config),
        flags={},
    )
    return with_target_norm(draft, target), facts


def _dummy_config(target: Gemma4Target) -> AssistantConfig:
    kinds = set(target.config.layer_types)
    text = replace(
        target.config,
        hidden_size=min(HIDDEN, target.hidden_size),
        intermediate_size=min(INNER, target.config.intermediate_size),
        layer_types=tuple(kind for kind in LAYERS if kind in kinds),
        final_logit_softcapping=None,
    )
    return AssistantConfig(backbone_hidden_size=target.hidden_size, text=text)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AssistantReading(Reading):
    """A loaded assistant, which drafts from the keys in its target's caches."""

    draft: Gemma4Assistant
    target: Gemma4Target

    @torch.no_grad()
    def chain_logits(self, text: TargetText, steps: int) -> Iterator[Tensor]:
        draft, device, last = self.draft, text.tokens.device, text.tokens.shape[1] - 1
        self.target.reset_cache()
        run_target(self.target, text.tokens[:, :last], 0)
        anchors = torch.arange(text.first_anchor, text.slots, device=device).unsqueeze(0)
        first = torch.zeros(1, dtype=torch.int64, device=device)
        step = Step(anchors, first, chain_tail(anchors))
        states = self.aligned(draft.fuse(text.taps(draft.tap_layers)))[:, text.first_anchor :]
        for ahead in range(1, steps + 1):
            tokens = text.tokens[:, (anchors[0] + ahead).clamp(max=last)]
            logits, states = draft.run(self.target, tokens, states, step)
            yield logits[0]


def readings(pair: Pair) -> Iterator[AssistantReading]:
    """Yield the only reading: the assistant as it was loaded."""
    draft, target = pair.draft, pair.target
    assert isinstance(draft, Gemma4Assistant) and isinstance(target, Gemma4Target)
    yield AssistantReading(target_ids=draft.target_ids, draft=draft, target=target)
