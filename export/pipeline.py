"""From checkpoints to an artifact, step by step."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram

from eagle_aot.artifact import PROGRAM, Manifest
from eagle_aot.errors import EagleError, ExportError, UnsupportedError
from eagle_aot.export.graph_checks import check_graphs
from eagle_aot.export.manifest import (
    copy_tokenizer,
    describe,
    find_tokenizer,
    publish,
    read_eos_ids,
)
from eagle_aot.export.methods import export_methods
from eagle_aot.export.output_dir import appearing, check_output_dir
from eagle_aot.export.progress import Progress
from eagle_aot.export.source import DUMMY, Source
from eagle_aot.export.speculator import Eagle3Speculator
from eagle_aot.export.verify_window import MethodLengths, check_chain_len, method_lengths
from eagle_aot.targets import get_target

DTYPE = torch.float32  # what XNNPACK computes in
DEFAULT_CHAIN_LEN = 4
DEFAULT_MAX_PREFILL = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """How to export a pair. None means the head's or the target's own default."""

    backend: str = "auto"
    chain_len: int | None = None
    max_seq_len: int | None = None
    max_prefill: int = DEFAULT_MAX_PREFILL
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        if self.chain_len is not None:
            check_chain_len(self.chain_len)
        if self.backend == "cuda":
            raise UnsupportedError("--backend cuda: this version lowers through xnnpack only")


def run_export(source: Source, output_dir: Path, options: ExportOptions) -> Manifest:
    """Load the pair, export it and write the artifact. Raises EagleError."""
    check_output_dir(output_dir)
    find_tokenizer(source)  # before the minutes of work, not after
    with options.progress.stage("load"):
        speculator = source.load(_max_seq_len(source, options), DTYPE)
    return export_speculator(speculator, output_dir, source=source, options=options)


def run_check(source: Source, options: ExportOptions) -> dict[str, ExportedProgram]:
    """Trace the pair's methods and check their graphs; lower nothing, write nothing.

    Dummy weights are never materialised, so a target of any size can be checked anywhere.
    """
    fake = source.load_format == DUMMY
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext():
        with options.progress.stage("load"):
            speculator = source.load(_max_seq_len(source, options), DTYPE)
        return trace(speculator, _lengths(speculator, source, options), options.progress)


def export_speculator(
    speculator: Eagle3Speculator,
    output_dir: str | Path,
    *,
    source: Source,
    options: ExportOptions | None = None,
) -> Manifest:
    """Write the artifact of a loaded pair into `output_dir`.

    `source` says where the pair came from: its identity and tokenizer go into the artifact.
    INT4 weights of the target are dequantised in place. Raises ExportError when tracing,
    checking, lowering or writing fails.
    """
    # executorch takes seconds to import and is not needed to load, check or train.
    from eagle_aot.export.lowering import xnnpack

    options = options or ExportOptions()
    chain_len = options.chain_len or speculator.draft.config.default_chain_len or DEFAULT_CHAIN_LEN
    check_chain_len(chain_len)
    lengths = _lengths(speculator, source, options)
    constants = publish(speculator, lengths, chain_len, read_eos_ids(source.target_dir))
    xnnpack.fold_int4(speculator)
    programs = trace(speculator, lengths, options.progress)
    with options.progress.stage("lower"), stated("lowering failed"):
        program = xnnpack.lower(programs, constants.methods())
    with options.progress.stage("write"), appearing(Path(output_dir)) as directory:
        with (directory / PROGRAM).open("wb") as file:
            program.write_to_file(file)
        copy_tokenizer(source, directory)
        manifest = describe(speculator, lengths, constants, "xnnpack", source, directory)
        manifest.write(directory)
    return manifest


def trace(
    speculator: Eagle3Speculator, lengths: MethodLengths, progress: Progress
) -> dict[str, ExportedProgram]:
    """Export the three methods and check their graphs."""
    with progress.stage("trace"), stated("tracing failed"):
        programs = export_methods(speculator, lengths)
    with progress.stage("check graphs"):
        check_graphs(programs, lengths)
    return programs


@contextmanager
def stated(what: str) -> Iterator[None]:
    """Turn whatever the compilers raise, which have no common base, into an ExportError."""
    try:
        yield
    except EagleError:
        raise
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExportError(f"{what}: {first_line}") from error


def _lengths(speculator: Eagle3Speculator, source: Source, options: ExportOptions) -> MethodLengths:
    target = speculator.target
    return method_lengths(
        options.max_prefill,
        target.max_seq_len,
        target.sliding_window,
        get_target(source.target_model).min_forward_len,
    )


def _max_seq_len(source: Source, options: ExportOptions) -> int:
    return options.max_seq_len or get_target(source.target_model).default_max_seq_len
