"""Recognise the trainer of a head, and read its options with their sources.

The trainer decides what ambiguous keys mean. An option comes from a tensor, a key, or their
absence: the presence of a tensor decides, and a config.json that states the opposite is refused.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from eagle_aot.common.errors import CheckpointError
from eagle_aot.export.drafters.eagle3.reading.taps import ANGELSLIM_KEY
from eagle_aot.export.drafters.files import architectures
from eagle_aot.targets.config_section import ConfigSection

T = TypeVar("T")

OF_TENSORS = {
    "norm_before_fc": "input_norm.weight",
    "fc_norm": "fc_norm.0.weight",
    "final_norm": "norm.weight",
    "qk_norm": "layers.0.self_attn.q_norm.weight",
    "attention_bias": "layers.0.self_attn.q_proj.bias",
    "output_bias": "layers.0.self_attn.o_proj.bias",
    "mlp_bias": "layers.0.mlp.gate_proj.bias",
    "fc_bias": "fc.bias",
}
"""Options that a tensor decides."""


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value and its source."""

    value: T
    source: str


def read_options(
    options: ConfigSection, names: Collection[str], trainer: str
) -> dict[str, Sourced[bool]]:
    """Return every flag of `DraftConfig` by name.

    Raises CheckpointError if two keys disagree, or a key and the tensors.
    """
    flags = {
        option: Sourced(name in names, f"{name} is there" if name in names else f"no {name}")
        for option, name in OF_TENSORS.items()
    }
    for option in ("norm_before_fc", "fc_norm"):
        if (stated := declared(options, option)) and stated.value != flags[option].value:
            raise CheckpointError(
                f"{options.where.parent}: config.json says {option} {stated.value}, "
                f"tensors say {flags[option].value}"
            )
    flags["final_norm"] = _final_norm(options, flags["final_norm"])
    flags["norm_before_residual"] = declared(options, "norm_before_residual") or Sourced(
        False, "no norm_before_residual in config.json"
    )
    flags["norm_output"] = _norm_output(options, trainer, flags["fc_norm"].value)
    return flags


def declared(options: ConfigSection, key: str) -> Sourced[bool] | None:
    """Return a flag of config.json, which may be at its top or in `eagle_config`."""
    nested = options.section("eagle_config")
    stated = [
        Sourced(section.flag(key), f"{prefix}{key} in config.json")
        for section, prefix in ((options, ""), (nested, "eagle_config."))
        if section.has(key)
    ]
    if len({flag.value for flag in stated}) > 1:
        raise CheckpointError(
            f"{options.where}: {key} is {stated[0].value}, eagle_config.{key} is {stated[1].value}"
        )
    return stated[0] if stated else None


def _final_norm(options: ConfigSection, tensor: Sourced[bool]) -> Sourced[bool]:
    """Return whether a head has a norm before its output table; ModelOpt may train one without.

    A norm that is only missing stays on, so that the loader reports its weight.
    """
    stated = declared(options, "use_last_layernorm")
    if stated and tensor.value and not stated.value:
        raise CheckpointError(
            f"{options.where}: {stated.source} is false, but norm.weight is there"
        )
    return tensor if tensor.value else stated or Sourced(True, "a head has one")


def _norm_output(options: ConfigSection, trainer: str, fc_norm: bool) -> Sourced[bool]:
    """Return whether the recurrent feature is the one after the final norm.

    Speculators and NeMo call that `norm_output`, TensorRT-LLM `return_hidden_post_norm`. SpecForge
    writes `norm_output` for the norm before its output table and trains with the feature before
    it; together with `fc_norm` this is EAGLE-3.1, for which vLLM and SGLang use the normed feature.
    """
    if post_norm := declared(options, "return_hidden_post_norm"):
        return post_norm
    stated = declared(options, "norm_output")
    if stated is None:
        return Sourced(False, "no norm_output in config.json")
    if trainer in (SPECULATORS, NEMO) or not stated.value:
        return stated
    if fc_norm:
        return Sourced(True, f"{stated.source}, with fc_norm: EAGLE-3.1")
    return Sourced(False, f"{stated.source}: in a flat file the norm before lm_head")


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
