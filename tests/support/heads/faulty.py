"""Heads whose files mislead their reader, and one made for another target."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle_aot.targets.family import TINY_DIR

TAPS = "eagle_aux_hidden_state_layer_ids"
ATTENTION = "layers.0.self_attn"
Tensors = dict[str, Tensor]
Config = dict[str, Any]
Edit = Callable[[Tensors, Config], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """`found` is how the self-test names the reading that is right, None where none is."""

    name: str
    edit: Edit
    found: str | None
    slight: bool = False  # so that the built-in prompts are too few to tell


def write_faulty_head(fault: Fault, directory: Path, head: Path = TINY_DIR / "head") -> Path:
    """A sound head of dense linears with the fault, in a new directory."""
    shutil.copytree(head, directory)
    weights, settings = directory / "model.safetensors", directory / "config.json"
    tensors, config = load_file(weights), json.loads(settings.read_text())
    fault.edit(tensors, config)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights)
    settings.write_text(json.dumps(config, indent=2) + "\n")
    return directory


def no_fault(tensors: Tensors, config: Config) -> None:
    """Leave it as it is."""


def taps(*boundaries: int) -> Edit:
    """Name other layers than the head was trained on."""

    def edit(tensors: Tensors, config: Config) -> None:
        config[TAPS] = list(boundaries)

    return edit


def key(name: str, value: bool) -> Edit:
    """State something of the head that is not so."""

    def edit(tensors: Tensors, config: Config) -> None:
        config[name] = value

    return edit


def ids_in_d2t(tensors: Tensors, config: Config) -> None:
    """Store target ids where offsets belong: as many as stay within the vocabulary as offsets."""
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    fitting = int((ids + torch.arange(len(ids)) < config["transformer_layer_config"]["vocab_size"])
                  .sum())  # fmt: skip
    tensors["d2t"] = ids[:fitting]
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:fitting]
    tensors.pop("t2d", None)
    config["draft_vocab_size"] = fitting


def needless_d2t(tensors: Tensors, config: Config) -> None:
    """A draft vocabulary of the first ids, beside the map of another one."""
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    table = tensors["lm_head.weight"]
    first = ids < len(ids)
    rows = torch.zeros_like(table)
    rows[ids[first]] = table[first]
    tensors["lm_head.weight"] = rows


def swapped_halves(tensors: Tensors, config: Config) -> None:
    """A layer that reads [feature, embedding]."""
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = tensors[f"{ATTENTION}.{name}.weight"]
        tensors[f"{ATTENTION}.{name}.weight"] = weight.roll(weight.shape[1] // 2, dims=1)


def post_norm_feedback(tensors: Tensors, config: Config) -> None:
    """Name the feature after the final norm, whose weight is made to matter.

    The output table makes up for the new weight: the head drafts as before, fed as before.
    """
    generator = torch.Generator().manual_seed(0)
    norm = tensors["norm.weight"]
    factor = 16 ** (2 * torch.rand(len(norm), generator=generator) - 1)
    tensors["norm.weight"] = (norm.float() * factor).to(norm.dtype)
    table = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = (table.float() / factor).to(table.dtype)
    config["norm_output"] = True


def other_target(tensors: Tensors, config: Config) -> None:
    """A head for a target like this one, with its hidden units in another order."""
    generator = torch.Generator().manual_seed(0)
    hidden = config["target_hidden_size"]
    order = torch.cat(
        [i * hidden + torch.randperm(hidden, generator=generator) for i in range(len(config[TAPS]))]
    )
    tensors["fc.weight"] = tensors["fc.weight"][:, order]


def untrained(tensors: Tensors, config: Config) -> None:
    """Random weights in place of every trained matrix."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and name != "embed_tokens.weight":
            noise = torch.randn(tensor.shape, generator=generator) * tensor.shape[1] ** -0.5
            tensors[name] = noise.to(tensor.dtype)


def faults_of(first: int, second: int, third: int) -> tuple[Fault, ...]:
    """Faults of a head with these taps."""
    found = f"taps {first},{second},{third}"

    def misplaced(name: str, *by: int, slight: bool = False) -> Fault:
        moved = (first + by[0], second + by[1], third + by[2])
        return Fault(name=name, edit=taps(*moved), found=found, slight=slight)

    return (
        misplaced("all taps one lower", -1, -1, -1),
        misplaced("first tap one lower", -1, 0, 0, slight=True),
        Fault(name="target ids in d2t", edit=ids_in_d2t, found="d2t as ids"),
        Fault(name="a d2t that does not apply", edit=needless_d2t, found="d2t not applied"),
        Fault(name="halves swapped", edit=swapped_halves, found="halves swapped"),
        Fault(
            name="wrong feedback", edit=post_norm_feedback, found="feedback before the final norm"
        ),
        Fault(
            name="wrong residual",
            edit=key("norm_before_residual", False),
            found="residual after hidden_norm",
        ),
        Fault(name="a head of another target", edit=other_target, found=None),
        Fault(name="an untrained head", edit=untrained, found=None),
    )


FAULTS = faults_of(2, 4, 5)
"""Of the shipped pair's."""
