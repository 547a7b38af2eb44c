"""Recognise the trainer that wrote a head, which decides what ambiguous keys mean."""

from collections.abc import Collection

from eagle_aot.export.drafters.eagle3.reading.taps import ANGELSLIM_KEY
from eagle_aot.export.drafters.files import architectures
from eagle_aot.targets.config_section import ConfigSection

SPECULATORS = "vLLM speculators"
NEMO = "NeMo Automodel"
ANGELSLIM = "AngelSlim"
MODELOPT = "NVIDIA ModelOpt"
SPECFORGE = "SpecForge / SGLang"
SAFEAILAB = "SafeAILab"

CLASSES = {
    "LlamaEagle3DraftModel": NEMO,
    "Eagle3LlamaForCausalLM": ANGELSLIM,
    "LlamaForCausalLMEagle3Deep": MODELOPT,
}
MODELOPT_KEYS = ("use_last_layernorm", "parallel_draft_step", "next_layer_regular")


def find_trainer(config: ConfigSection, stored_names: Collection[str]) -> tuple[str, str]:
    """Return the trainer, and what it was recognised by."""
    if config.has("speculators_model_type"):
        return SPECULATORS, "speculators_model_type in config.json"
    classes = architectures(config)
    for name in classes:
        if name in CLASSES:
            return CLASSES[name], f"architectures {name}"
    if config.has(ANGELSLIM_KEY):
        return ANGELSLIM, f"{ANGELSLIM_KEY} in config.json"
    nested = config.section("eagle_config")
    for key in MODELOPT_KEYS:
        if nested.has(key):
            return MODELOPT, f"eagle_config.{key} in config.json"
    if "layers.0.hidden_norm.weight" in stored_names and "t2d" not in stored_names:
        return MODELOPT, "a flat config, tensors layers.0.* and no t2d"
    if "LlamaForCausalLMEagle3" in classes:
        return SPECFORGE, "architectures LlamaForCausalLMEagle3"
    if nested.values:
        return SPECFORGE, "eagle_config in config.json"
    return SAFEAILAB, "a flat config without keys of its own"
