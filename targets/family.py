"""What the registry knows of a family of targets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.protocol import TapTarget

TINY_DIR = Path(__file__).resolve().parent / "tiny"
SMOLLM2_HEAD = Path(__file__).resolve().parent / "smollm2" / "head"

Loader = Callable[[Checkpoint, torch.dtype, CacheSpec], TapTarget]


@dataclass(frozen=True, slots=True)
class Published:
    """A published model: its name here and as a checkpoint, its geometry for dummy weights, and the
    directory of its head if one ships with the package."""

    name: str
    checkpoint: str
    config: Any
    head: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Targets of one architecture.

    `load` reads a checkpoint whose config.json has one of `model_types`; `read_config` takes that
    file and the number of positions that will be used, and returns the geometry; `decoder` makes an
    empty model of a geometry. With `has_mtp` published checkpoints have an MTP layer of their own.
    """

    model_types: tuple[str, ...]
    load: Loader
    read_config: Callable[[ConfigSection, int], Any]
    decoder: Callable[[Any, torch.dtype, CacheSpec], TapTarget]
    published: tuple[Published, ...]
    has_mtp: bool = False
