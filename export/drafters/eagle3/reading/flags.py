"""The options of a head, each with what decided it: a tensor, a key, or their absence.

Presence of a tensor decides; a config.json that states the opposite is refused, never overruled.
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
    """A value and where it was read."""

    value: T
    source: str


def read_options(
    options: ConfigSection, names: Collection[str], trainer: str
) -> dict[str, Sourced[bool]]:
    """Every flag of `DraftConfig`, by its name there.

    Raises CheckpointError where two keys disagree, or a key and the tensors.
    """
    found = {option: _of_tensor(name, names) for option, name in OF_TENSORS.items()}
    for option in ("norm_before_fc", "fc_norm"):
        if (stated := declared(options, option)) and stated.value != found[option].value:
            raise CheckpointError(
                f"{options.where.parent}: config.json says {option} {stated.value}, "
                f"tensors say {found[option].value}"
            )
    found["final_norm"] = _final_norm(options, found["final_norm"])
    found["norm_before_residual"] = declared(options, "norm_before_residual") or Sourced(
        False, "no norm_before_residual in config.json"
    )
    found["norm_output"] = _norm_output(options, trainer, found["fc_norm"].value)
    return found


def declared(options: ConfigSection, key: str) -> Sourced[bool] | None:
    """A flag that config.json states, at its top or in `eagle_config`, where engines look too."""
    nested = options.section("eagle_config")
    top = Sourced(options.flag(key), f"{key} in config.json") if options.has(key) else None
    below = (
        Sourced(nested.flag(key), f"eagle_config.{key} in config.json") if nested.has(key) else None
    )
    if top and below and top.value != below.value:
        raise CheckpointError(
            f"{options.where}: {key} is {top.value}, eagle_config.{key} is {below.value}"
        )
    return top or below


def _of_tensor(name: str, names: Collection[str]) -> Sourced[bool]:
    return Sourced(name in names, f"{name} is there" if name in names else f"no {name}")


def _final_norm(options: ConfigSection, tensor: Sourced[bool]) -> Sourced[bool]:
    """ModelOpt may train a head without the norm before its output table.

    A norm that is merely missing stays on, so that the loader misses its weight.
    """
    stated = declared(options, "use_last_layernorm")
    if stated and tensor.value and not stated.value:
        raise CheckpointError(
            f"{options.where}: {stated.source} is false, but norm.weight is there"
        )
    return tensor if tensor.value else stated or Sourced(True, "a head has one")


def _norm_output(options: ConfigSection, trainer: str, fc_norm: bool) -> Sourced[bool]:
    """Whether the recurrent feature is the one after the final norm.

    Speculators and NeMo call that `norm_output`, TensorRT-LLM `return_hidden_post_norm`. SpecForge
    writes `norm_output` for the norm before its output table and trains with the feature before
    it; with `fc_norm` the pair means EAGLE-3.1, which vLLM and SGLang feed after the norm.
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
