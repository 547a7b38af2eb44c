"""The sizes and tables of a target that the description of a head needs, without loading it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from eagle_aot.common.errors import CheckpointNotFoundError, PairingError, SettingError
from eagle_aot.targets import TapTarget, get_target
from eagle_aot.targets.checkpoint import Checkpoint, read_config
from eagle_aot.targets.config_section import MAX_LAYERS
from eagle_aot.targets.decoder.kv_cache import CacheSpec

ANY_CONTEXT = 16  # sizes do not depend on it


def check_target_sizes(
    target: "TapTarget | TargetFacts", hidden_size: int, vocab_size: int, name: str = "the target"
) -> None:
    """Raise PairingError unless a head for these sizes was made for `target`."""
    for what, expected, actual in (
        ("hidden size", hidden_size, target.hidden_size),
        ("vocabulary", vocab_size, target.vocab_size),
    ):
        if expected != actual:
            raise PairingError(f"{name}'s {what} is {actual}, the head was made for {expected}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetFacts:
    """A target's sizes; `checkpoint` is None if its weights are not available."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    checkpoint: Checkpoint | None = None

    @classmethod
    def find(cls, target_dir: Path | None, target_model: str | None) -> "TargetFacts | None":
        """Read the target in a directory, or else a registered one; None if neither is named."""
        if target_dir is not None:
            return cls.read(target_dir)
        if target_model is None:
            return None
        spec = get_target(target_model)
        if spec.target_dir is not None:
            return cls.read(spec.target_dir)
        if spec.dummy is None:
            raise SettingError(f"{target_model} has no geometry of its own: name a --target-dir")
        with FakeTensorMode():
            target = spec.dummy(torch.bfloat16, CacheSpec(ANY_CONTEXT, torch.bfloat16), None)
        return cls(
            name=target_model,
            num_layers=target.num_hidden_layers,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
        )

    @classmethod
    def read(cls, directory: Path) -> "TargetFacts":
        """Read the sizes from a config.json; of a multimodal model, those of its text part."""
        config = read_config(directory)
        text = config.section("text_config") if config.has("text_config") else config
        try:
            checkpoint: Checkpoint | None = Checkpoint(directory)
        except CheckpointNotFoundError:
            checkpoint = None
        return cls(
            name=str(directory),
            num_layers=text.count("num_hidden_layers", most=MAX_LAYERS),
            hidden_size=text.count("hidden_size"),
            vocab_size=text.count("vocab_size", config.values.get("vocab_size")),
            checkpoint=checkpoint,
        )

    def table(self, leaf: str) -> Tensor | None:
        """Return the plain table [V, H] whose name ends with `leaf`, if the checkpoint has one."""
        if self.checkpoint is None:
            return None
        size = (self.vocab_size, self.hidden_size)
        for name in self.checkpoint.names():
            if f".{name}".endswith(f".{leaf}") and self.checkpoint.shape(name) == size:
                return self.checkpoint.tensor(name)
        return None
