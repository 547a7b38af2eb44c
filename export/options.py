"""How to export a pair, and the same as a manifest records it."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import SettingError
from eagle_aot.common.progress import Progress
from eagle_aot.export.lengths import check_chain_len, check_image_tokens, check_max_batch_size
from eagle_aot.export.loading.source import Source
from eagle_aot.export.lowering.backend import AUTO
from eagle_aot.export.prepare.cpu_weights import FLOAT32, check_cpu_weights

TEXT, TEXT_AND_IMAGES = "text", "text,image"
INPUTS = (TEXT, TEXT_AND_IMAGES)
"""What prompts may hold."""

UNRECORDED = (
    *("target_dir", "draft_dir", "self_test_prompts"),
    *("jobs", "gpu_memory", "progress"),
)
"""Where a checkpoint lay says nothing about it, and prompts and processes decide nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """How to export a pair. None means the head's, the target's or the backend's own default.

    With more `jobs` than one a CUDA program's methods are lowered by as many processes. With this
    one they take `gpu_memory` bytes of the GPU together, or what is free, as far as one method can.
    They are spawned: a script that asks for it guards its own work by `if __name__ == "__main__"`.
    """

    backend: str = AUTO
    attention: str | None = None
    cpu_weights: str = FLOAT32
    chain_len: int | None = None
    max_seq_len: int | None = None
    max_prefill: int | None = None
    max_batch_size: int = 1
    inputs: str = TEXT
    image_tokens: tuple[int, ...] | None = None
    no_self_test: bool = False
    self_test_prompts: Path | None = None
    jobs: int = 1
    gpu_memory: int | None = None
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        if self.chain_len is not None:
            check_chain_len(self.chain_len)
        check_max_batch_size(self.max_batch_size)
        check_cpu_weights(self.cpu_weights, self.backend)
        if self.inputs not in INPUTS:
            raise SettingError(f"--inputs {self.inputs}: must be {' or '.join(INPUTS)}")
        if self.image_tokens is not None:
            if not self.reads_pictures:
                raise SettingError(f"--image-tokens goes with --inputs {TEXT_AND_IMAGES}")
            check_image_tokens(self.image_tokens)

    @property
    def reads_pictures(self) -> bool:
        """Whether prompts may have pictures in them."""
        return self.inputs == TEXT_AND_IMAGES


SOURCE_OPTIONS = tuple(f.name for f in fields(Source) if f.name not in UNRECORDED)
EXPORT_OPTIONS = tuple(f.name for f in fields(ExportOptions) if f.name not in UNRECORDED)
"""What a manifest records of both, by the names of the command line."""


def record_options(source: Source, options: ExportOptions) -> dict[str, Any]:
    """All that an export was told but its directories."""
    told = {name: getattr(source, name) for name in SOURCE_OPTIONS}
    return told | {name: getattr(options, name) for name in EXPORT_OPTIONS}


def command_line(recorded: dict[str, Any]) -> list[str]:
    """The arguments of `eagle-export` that stand for recorded options.

    Each is one word, so that no value can be taken for an option.
    """
    words = [(f"--{name.replace('_', '-')}", value) for name, value in recorded.items()]
    told = [(flag, value) for flag, value in words if value is not None and value is not False]
    return [flag if value is True else f"{flag}={_text(value)}" for flag, value in told]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
