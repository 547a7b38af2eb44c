"""Assistants without a checkpoint: full geometry, random weights."""

from dataclasses import replace

import torch

from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.gemma4_assistant.config import AssistantConfig
from eagle_aot.export.drafters.gemma4_assistant.load import beside, own_shapes
from eagle_aot.export.drafters.gemma4_assistant.model import Gemma4Assistant
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import assign
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.gemma4.config import FULL, SLIDING

HIDDEN, INNER = 1024, 8192
"""Widths of google/gemma-4-31B-it-assistant; of a small target's at most its own."""
LAYERS = (SLIDING, SLIDING, SLIDING, FULL)


def dummy_assistant(target: TapTarget, dtype: torch.dtype, caches: CacheSpec) -> Gemma4Assistant:
    """A random assistant that reads `target`. Raises SettingError for what is no Gemma 4."""
    if not isinstance(target, Gemma4Target):
        raise SettingError("--drafter gemma4-assistant: the target is no Gemma 4")
    draft = Gemma4Assistant(_config(target), target.num_hidden_layers, dtype, caches)
    draft.check_target(target)
    for name, shape in own_shapes(draft).items():
        if len(shape) > 1:
            assign(draft, name, torch.randn(shape, dtype=dtype) * shape[-1] ** -0.5)
    return beside(draft, target)


def _config(target: Gemma4Target) -> AssistantConfig:
    there = set(target.config.layer_types)
    text = replace(
        target.config,
        hidden_size=min(HIDDEN, target.hidden_size),
        intermediate_size=min(INNER, target.config.intermediate_size),
        layer_types=tuple(kind for kind in LAYERS if kind in there),
        final_logit_softcapping=None,
    )
    return AssistantConfig(backbone_hidden_size=target.hidden_size, text=text)
