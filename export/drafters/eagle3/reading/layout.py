"""Recognise the layout of a head's files.

vLLM's speculators put options at the top of config.json and the layer into
`transformer_layer_config`; all other trainers write one flat config, some with an `eagle_config`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.export.drafters.eagle3.reading.flags import (
    SPECULATORS,
    Sourced,
    find_trainer,
    read_options,
)
from eagle_aot.export.drafters.eagle3.reading.names import canonical_names, count_layers
from eagle_aot.export.drafters.eagle3.reading.refusals import (
    refuse_other_configs,
    refuse_other_tensors,
)
from eagle_aot.export.drafters.eagle3.reading.taps import TapChoice, choose_tap_layers
from eagle_aot.export.drafters.head_tensors import HeadFiles
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadLayout(HeadFiles):
    """What a head's files say.

    `layer` and `options` are sections of config.json, `flags` are those of `DraftConfig`.
    `parallel` is true for a P-EAGLE head.
    """

    trainer: str
    recognised_by: str
    layer: ConfigSection
    options: ConfigSection
    flags: Mapping[str, Sourced[bool]]
    taps: TapChoice
    parallel: bool = False

    @property
    def num_layers(self) -> int:
        return count_layers(self.names)

    def matrix(self, name: str) -> tuple[int, int]:
        """Return rows and columns of a weight. Raises CheckpointError if it is not a matrix."""
        shape: torch.Size = self.checkpoint.shape(self.stored(name))
        if len(shape) != 2:
            raise CheckpointError(
                f"{self.directory}: {name} has shape {list(shape)}, not two sizes"
            )
        return shape[0], shape[1]


def read_layout(
    checkpoint: Checkpoint,
    num_layers: int | None,
    tap_layers: Sequence[int] | None = None,
    parallel: bool = False,
) -> HeadLayout:
    """Read the layout of an EAGLE-3 head or, if `parallel`, a P-EAGLE head.

    `num_layers` is the target's, None if unknown; `tap_layers` are boundaries that replace the
    config's. Raises UnsupportedError for another algorithm's head and CheckpointError for a config
    that contradicts itself.
    """
    config, directory = checkpoint.config, checkpoint.directory
    refuse_other_configs(config, parallel)
    if (directory / "hf_quant_config.json").is_file():
        raise UnsupportedError(f"{directory}: the head is quantized; only plain weights load")
    stored = list(checkpoint.names())
    names = canonical_names(stored, directory)
    refuse_other_tensors(config, names, parallel)
    trainer, recognised_by = find_trainer(config, stored)
    return HeadLayout(
        checkpoint=checkpoint,
        trainer=trainer,
        recognised_by=recognised_by,
        layer=layer_config(config) if trainer == SPECULATORS else config,
        options=config,
        flags=read_options(config, names, trainer),
        taps=choose_tap_layers(config, num_layers, tap_layers),
        names=names,
        parallel=parallel,
    )


def layer_config(config: ConfigSection) -> ConfigSection:
    """Return the layer's section of a speculators config. Raises CheckpointError without one."""
    layer = config.section("transformer_layer_config")
    if not layer.values:
        raise CheckpointError(f"{config.where}: no transformer_layer_config")
    return layer
