"""The targets this version knows, as one plain table."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eagle_aot.errors import SettingError, UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import fill_dummy
from eagle_aot.targets.gemma4 import GEMMA4_31B, Gemma4Config, Gemma4Target, load_gemma4
from eagle_aot.targets.gemma4.config import MODEL_TYPES as GEMMA4_MODEL_TYPES
from eagle_aot.targets.protocol import TapTarget

TINY_DIR = Path(__file__).resolve().parent / "tiny"
DUMMY_GROUP_SIZE = 32

Loader = Callable[[Checkpoint, int, torch.dtype], TapTarget]


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSpec:
    """One line of the table.

    `load` reads a checkpoint directory; `dummy` builds the same geometry with random weights, all
    of its layers or only the first few.
    The directories are those of a pair that ships with the package, None where the user brings
    the checkpoint. `min_forward_len` is the shortest chunk the family can export.
    """

    name: str
    summary: str
    load: Loader
    dummy: Callable[[int, torch.dtype, int | None], TapTarget]
    target_dir: Path | None = None
    draft_dir: Path | None = None
    default_max_seq_len: int = 4096
    min_forward_len: int = 1


def load_target(
    path_or_name: str | Path, max_seq_len: int = 4096, dtype: torch.dtype = torch.float32
) -> TapTarget:
    """A target on the host, from a checkpoint directory or the name of a shipped one.

    Raises SettingError for a name that is neither, and the checkpoint's own errors.
    """
    spec = TARGETS.get(str(path_or_name))
    if spec is not None and spec.target_dir is not None:
        return spec.load(Checkpoint(spec.target_dir), max_seq_len, dtype)
    if not Path(path_or_name).is_dir():
        raise SettingError(
            f"{path_or_name}: neither a checkpoint directory nor a shipped target "
            f"({', '.join(name for name, s in TARGETS.items() if s.target_dir)})"
        )
    checkpoint = Checkpoint(path_or_name)
    return _loader(checkpoint)(checkpoint, max_seq_len, dtype)


def get_target(name: str) -> TargetSpec:
    """The table's line called `name`. Raises SettingError that lists the known names."""
    if name not in TARGETS:
        raise SettingError(f"unknown target {name!r}; known targets: {', '.join(TARGETS)}")
    return TARGETS[name]


def _loader(checkpoint: Checkpoint) -> Loader:
    model_type = checkpoint.config.text("model_type")
    if model_type not in LOADERS:
        raise UnsupportedError(
            f"{checkpoint.directory}: model_type {model_type!r}; known: {', '.join(LOADERS)}"
        )
    return LOADERS[model_type]


def _dummy_gemma4(
    config: Gemma4Config, max_seq_len: int, dtype: torch.dtype, num_layers: int | None
) -> Gemma4Target:
    if num_layers is not None and not 1 <= num_layers <= config.num_hidden_layers:
        raise SettingError(
            f"--dummy-layers {num_layers}: the target has {config.num_hidden_layers} layers"
        )
    config = replace(config, layer_types=config.layer_types[:num_layers])
    target = Gemma4Target(config, max_seq_len, dtype)
    fill_dummy(target, DUMMY_GROUP_SIZE, dtype)
    return target.eval()


def _dummy_tiny(max_seq_len: int, dtype: torch.dtype, num_layers: int | None) -> Gemma4Target:
    config = Gemma4Config.from_hf(Checkpoint(TINY_DIR / "target").config)
    return _dummy_gemma4(config, max_seq_len, dtype, num_layers)


def _dummy_31b(max_seq_len: int, dtype: torch.dtype, num_layers: int | None) -> Gemma4Target:
    return _dummy_gemma4(GEMMA4_31B, max_seq_len, dtype, num_layers)


LOADERS: dict[str, Loader] = dict.fromkeys(GEMMA4_MODEL_TYPES, load_gemma4)
"""Which family reads a config.json's `model_type`."""

TARGETS: dict[str, TargetSpec] = {
    "gemma4-tiny": TargetSpec(
        name="gemma4-tiny",
        summary="the shipped pair: a 6 million parameter Gemma 4 that solves arithmetic stories",
        load=load_gemma4,
        dummy=_dummy_tiny,
        target_dir=TINY_DIR / "target",
        draft_dir=TINY_DIR / "head",
        default_max_seq_len=1024,
    ),
    "gemma4-31b": TargetSpec(
        name="gemma4-31b",
        summary="google/gemma-4-31B-it, INT4 (needs --target-dir and --draft-dir)",
        load=load_gemma4,
        dummy=_dummy_31b,
    ),
}
