"""The layouts in which EAGLE-3 heads are stored, brought to one set of names.

vLLM-speculators: options at the top of config.json, the layer nested in `transformer_layer_config`,
tensors `layers.0.*`. SafeAILab: everything flat, tensors `midlayer.*`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle_aot.errors import CheckpointError, UnsupportedError
from eagle_aot.export.tap_layers import flat_tap_layers, speculators_tap_layers
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection

RENAMES = (
    (re.compile(r"^(draft_model|eagle_module|module)\."), ""),
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
)
UNUSED = re.compile(r"^t2d$|^verifier_|rotary_emb|inv_freq")


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """A head on disk, whatever its layout.

    `layer` and `options` are views of config.json; `names` maps canonical tensor names to those of
    the checkpoint; `tap_layers` are boundaries, empty where the config names none.
    """

    checkpoint: Checkpoint
    layer: ConfigSection
    options: ConfigSection
    tap_layers: tuple[int, ...]
    names: Mapping[str, str]

    @property
    def directory(self) -> Path:
        """Where it was read, for messages."""
        return self.checkpoint.directory

    def stored(self, name: str) -> str:
        """The checkpoint's name of a tensor, or the canonical one where it has none."""
        return self.names.get(name, name)

    def matrix(self, name: str) -> tuple[int, int]:
        """(rows, columns) of a weight. Raises CheckpointError when it is missing or not 2-D."""
        shape: torch.Size = self.checkpoint.shape(self.stored(name))
        if len(shape) != 2:
            raise CheckpointError(
                f"{self.directory}: {name} has shape {list(shape)}, not two sizes"
            )
        return shape[0], shape[1]


def read_layout(checkpoint: Checkpoint, num_layers: int | None) -> HeadLayout:
    """Recognise the layout of a head; `num_layers` is the target's, where it is known.

    Raises UnsupportedError for another algorithm's head and CheckpointError for a config that
    contradicts itself.
    """
    config, where = checkpoint.config, checkpoint.directory
    kind = config.text("speculators_model_type", "")
    if kind not in ("", "eagle3"):
        raise UnsupportedError(f"{where}: a {kind!r} speculator, not EAGLE-3")
    if not kind:
        refuse_other_trainers(config)
        taps = flat_tap_layers(config.values, num_layers)
        return HeadLayout(checkpoint, config, config, taps, canonical_names(checkpoint))
    layer = config.section("transformer_layer_config")
    if not layer.values:
        raise CheckpointError(f"{where}/config.json: no transformer_layer_config")
    taps = speculators_tap_layers(config.values)
    return HeadLayout(checkpoint, layer, config, taps, canonical_names(checkpoint))


def refuse_other_trainers(config: ConfigSection) -> None:
    """Raise UnsupportedError for options of flat configs that would change the math."""
    nested = config.section("eagle_config")
    if not nested.flag("use_aux_hidden_state", True):
        raise UnsupportedError(f"{config.where}: a head without taps, not EAGLE-3")
    for key in ("return_hidden_post_norm", "eh_proj_before_attn"):
        if nested.flag(key):
            raise UnsupportedError(f"{config.where}: eagle_config.{key} is not supported")
    if nested.values.get("parallel_draft_step", 1) not in (None, 0, 1):
        raise UnsupportedError(f"{config.where}: a head that drafts in parallel, not EAGLE-3")
    if config.has("aux_hidden_states_layer_ids"):
        raise UnsupportedError(
            f"{config.where}: aux_hidden_states_layer_ids: explicit taps of AngelSlim heads"
        )


def canonical_names(checkpoint: Checkpoint) -> dict[str, str]:
    """Canonical tensor name -> name in this checkpoint, unused tensors left out.

    Raises UnsupportedError where the tensors are not those of a single-layer EAGLE-3 head.
    """
    names: dict[str, str] = {}
    for stored in checkpoint.names():
        name = stored
        for pattern, replacement in RENAMES:
            name = pattern.sub(replacement, name)
        if UNUSED.search(name):
            continue
        if name in names:
            raise CheckpointError(
                f"{checkpoint.directory}: {names[name]!r} and {stored!r} are the same tensor"
            )
        names[name] = stored
    where = checkpoint.directory
    if "fc.weight" not in names or "layers.0.hidden_norm.weight" not in names:
        raise UnsupportedError(f"{where}: no fc.weight or hidden_norm.weight: not an EAGLE-3 head")
    if any(name.startswith(("layers.1.", "additional_layers.")) for name in names):
        raise UnsupportedError(f"{where}: more than one decoder layer")
    return names
