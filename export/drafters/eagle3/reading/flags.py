"""The options of a head, each with its source: a tensor, a key, or their absence.

The presence of a tensor decides; a config.json that states the opposite is refused.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from eagle_aot.common.errors import CheckpointError
from eagle_aot.export.drafters.eagle3.reading.trainer import NEMO, SPECULATORS
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
    flags = {option: _of_tensor(name, names) for option, name in OF_TENSORS.items()}
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


def _of_tensor(name: str, names: Collection[str]) -> Sourced[bool]:
    return Sourced(name in names, f"{name} is there" if name in names else f"no {name}")


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
