"""What a drafter's description asks of a target: sizes and tables, without building it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from eagle_aot.common.errors import CheckpointNotFoundError, PairingError, SettingError
from eagle_aot.targets import TapTarget, get_target
from eagle_aot.targets.checkpoint import Checkpoint, read_config
from eagle_aot.targets.decoder.kv_cache import CacheSpec

SHORTEST = 16  # any context will do for sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetFacts:
    """A target by its config; `checkpoint` is None where its weights are not at hand."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    checkpoint: Checkpoint | None = None

    @classmethod
    def find(cls, target_dir: Path | None, target_model: str | None) -> "TargetFacts | None":
        """The target in a directory, or else a line of the table; None where neither is named."""
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
            return cls._of(
                target_model, spec.dummy(torch.bfloat16, CacheSpec(SHORTEST, torch.bfloat16), None)
            )

    @classmethod
    def read(cls, directory: Path) -> "TargetFacts":
        """Sizes from its config, of the text part of a multimodal model."""
        config = read_config(directory)
        text = config.section("text_config") if config.has("text_config") else config
        return cls(
            name=str(directory),
            num_layers=text.count("num_hidden_layers"),
            hidden_size=text.count("hidden_size"),
            vocab_size=text.count("vocab_size", config.values.get("vocab_size")),
            checkpoint=_with_weights(directory),
        )

    @classmethod
    def _of(cls, name: str, target: TapTarget) -> "TargetFacts":
        return cls(
            name=name,
            num_layers=target.num_hidden_layers,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
        )

    def check_made_for(self, hidden_size: int, vocab_size: int) -> None:
        """Raise PairingError where a head was made for a target of other sizes."""
        for what, head, found in (
            ("hidden size", hidden_size, self.hidden_size),
            ("vocabulary", vocab_size, self.vocab_size),
        ):
            if head != found:
                raise PairingError(
                    f"{self.name}: its {what} is {found}, the head was made for {head}"
                )

    def table(self, leaf: str) -> Tensor | None:
        """The plain table [V, H] whose name ends with `leaf`, where the checkpoint has one."""
        if self.checkpoint is None:
            return None
        size = (self.vocab_size, self.hidden_size)
        for name in self.checkpoint.names():
            if f".{name}".endswith(f".{leaf}") and self.checkpoint.shape(name) == size:
                return self.checkpoint.tensor(name)
        return None


def _with_weights(directory: Path) -> Checkpoint | None:
    try:
        return Checkpoint(directory)
    except CheckpointNotFoundError:
        return None
