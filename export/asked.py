"""What the command line of `eagle-export` asks for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from eagle_aot.export import ExportOptions, Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """All options by their names. What needs torch is imported when it is asked for."""

    target_model: str | None
    target_dir: Path | None
    draft_dir: Path | None
    output_dir: Path | None
    backend: str
    attention: str | None
    cpu_weights: str
    chain_len: int | None
    max_seq_len: int | None
    max_prefill: int | None
    max_batch_size: int
    inputs: str
    image_tokens: tuple[int, ...] | None
    load_format: str
    dummy_layers: int | None
    quantize: str | None
    draft_quant: str
    table_quant: str
    drafter: str
    check_only: bool
    tap_layers: str | None
    describe_draft: Path | None
    describe_target: Path | None
    self_test: bool
    no_self_test: bool
    self_test_prompts: Path | None
    jobs: int
    gpu_memory: float | None
    reproduce: Path | None
    as_json: bool
    list_targets: bool

    @property
    def taps(self) -> tuple[int, ...] | None:
        """Boundaries that are named. Raises SettingError."""
        from eagle_aot.export.drafters.taps import parse_tap_layers

        return parse_tap_layers(self.tap_layers)

    @property
    def source(self) -> "Source":
        """What to load. Raises EagleError, or click's for a target that is not named."""
        from eagle_aot.export import Source

        if self.target_model is None:
            raise click.UsageError("--target-model is needed (see --list-targets)")
        return Source.find(
            self.target_model,
            self.target_dir,
            self.draft_dir,
            self.load_format,
            self.dummy_layers,
            self.taps,
            self.quantize,
            self.draft_quant,
            self.drafter,
            self.table_quant,
        )

    @property
    def options(self) -> "ExportOptions":
        """How to export it. Raises SettingError."""
        from eagle_aot.export import ExportOptions

        return ExportOptions(
            backend=self.backend,
            attention=self.attention,
            cpu_weights=self.cpu_weights,
            chain_len=self.chain_len,
            max_seq_len=self.max_seq_len,
            max_prefill=self.max_prefill,
            max_batch_size=self.max_batch_size,
            inputs=self.inputs,
            image_tokens=self.image_tokens,
            no_self_test=self.no_self_test,
            self_test_prompts=self.self_test_prompts,
            jobs=self.jobs,
            gpu_memory=None if self.gpu_memory is None else int(self.gpu_memory * 2**30),
        )
