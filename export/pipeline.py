"""From checkpoints to an artifact, step by step."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram

from eagle_aot.artifact import Manifest
from eagle_aot.common.errors import EagleError, ExportError
from eagle_aot.common.memory import shortage
from eagle_aot.common.progress import Progress
from eagle_aot.export.drafters.eagle3.self_test.run import pairing_record, self_test
from eagle_aot.export.drafters.eagle3.self_test.verdict import RANDOM, Verdict, unknown
from eagle_aot.export.graph_checks import check_graphs, written_caches
from eagle_aot.export.lengths import MethodLengths, check_chain_len, method_lengths
from eagle_aot.export.load import DUMMY, Source
from eagle_aot.export.lowering.backend import (
    AUTO,
    CUDA,
    DTYPES,
    XNNPACK,
    choose_backend,
    lowering,
    multiprocessors,
)
from eagle_aot.export.methods import export_methods
from eagle_aot.export.options import ExportOptions
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.attention import choose_attention, methods_splitting_keys
from eagle_aot.export.prepare.fold import fold_int4
from eagle_aot.export.prepare.pack import pack_int4
from eagle_aot.export.publish.decisions import describe_decisions, linear_formats
from eagle_aot.export.publish.describe import (
    check_tokenizer,
    copy_tokenizer,
    describe,
    publish,
    read_eos_ids,
    write_draft_ids,
)
from eagle_aot.export.publish.output_dir import appearing, check_output_dir
from eagle_aot.targets import get_target
from eagle_aot.targets.decoder.kv_cache import CacheSizes

DEFAULT_CHAIN_LEN = 4
WORKSPACE = "compiling"
"""Where a compiler keeps its files until the artifact is written: on the same disk, and gone with
it when the export is killed."""


def run_export(source: Source, output_dir: Path, options: ExportOptions) -> Manifest:
    """Load the pair, export it and write the artifact. Raises EagleError."""
    backend = choose_backend(options.backend)
    choose_attention(options.attention, backend)
    check_output_dir(output_dir)
    check_tokenizer(source)  # before the minutes of work, not after
    with options.progress.stage("load"):
        pair = load_pair(source, _caches(source, options, backend))
    return export_pair(pair, output_dir, source=source, options=options)


def load_pair(source: Source, caches: CacheSizes) -> Pair:
    """The pair on the host. A GPU draws a dummy's numbers: a host takes minutes for 30 billion."""
    if source.load_format != DUMMY or caches.dtype != DTYPES[CUDA]:
        return source.load(caches)
    with torch.device(CUDA):
        pair = source.load(caches)
    pair.cpu()
    torch.cuda.empty_cache()  # compilers may take room in processes of their own
    return pair


def run_check(source: Source, options: ExportOptions) -> dict[str, ExportedProgram]:
    """Trace the pair's methods and check their graphs; lower nothing, write nothing.

    Unless another backend is asked for these are the CUDA backend's graphs, on any machine. Dummy
    weights are never materialised, so a target of any size can be checked anywhere.
    """
    backend = CUDA if options.backend == AUTO else options.backend
    attention = choose_attention(options.attention, backend)
    fake = source.load_format == DUMMY
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext():
        with options.progress.stage("load"):
            pair = source.load(_caches(source, options, backend))
        lengths = _lengths(pair, options)
        return trace(pair, lengths, backend, attention, options.progress)


def run_self_test(source: Source, options: ExportOptions) -> Verdict:
    """Load the pair as for an export and rank the readings of its head. Raises EagleError."""
    backend = choose_backend(options.backend)
    if source.load_format == DUMMY:
        return unknown(RANDOM)
    with options.progress.stage("load"):
        pair = load_pair(source, _caches(source, options, backend))
    return self_test(pair, source, backend, options)


def export_pair(
    pair: Pair,
    output_dir: str | Path,
    *,
    source: Source,
    options: ExportOptions | None = None,
) -> Manifest:
    """Write the artifact of a loaded pair into `output_dir`.

    `source` says where the pair came from: its identity and tokenizer go into the artifact. INT4
    weights of both are changed in place: dequantised for XNNPACK, packed for CUDA. Raises
    UnsupportedError for weights that cannot be packed, ExportError when tracing, checking, lowering
    or writing fails.
    """
    options = options or ExportOptions()
    progress, backend = options.progress, choose_backend(options.backend)
    attention = choose_attention(options.attention, backend)
    chain_len = options.chain_len or pair.draft.config.default_chain_len or DEFAULT_CHAIN_LEN
    check_chain_len(chain_len)
    lengths = _lengths(pair, options)
    constants = publish(pair, lengths, chain_len, read_eos_ids(source.target_dir))
    chosen = replace(
        options,
        backend=backend,
        attention=attention,
        chain_len=chain_len,
        max_seq_len=constants.max_seq_len,
    )
    linears = linear_formats(pair)  # which tracing folds or packs
    found = pairing_record(pair, source, backend, options)
    programs = trace(pair, lengths, backend, attention, progress)
    decisions = describe_decisions(pair, source, chosen, linears, programs)
    caches = written_caches(programs)
    with progress.stage("import the compiler"):
        compiler = lowering(backend)
    with appearing(Path(output_dir)) as directory:
        with compiler.workspace(directory / WORKSPACE):
            with progress.stage("lower") as begin, stated("lowering failed"):
                program = compiler.lower(programs, constants.methods(), begin)
            with progress.stage("write"):
                compiler.write(program, directory)
        copy_tokenizer(source, directory)
        write_draft_ids(pair.draft, directory)
        manifest = describe(
            pair,
            lengths,
            constants,
            source,
            directory,
            options=chosen,
            decisions=decisions,
            device=compiler.device_record(),
            caches=caches,
            stages=progress.stages,
            self_test=found,
        )
        manifest.write(directory)
    return manifest


def trace(
    pair: Pair,
    lengths: MethodLengths,
    backend: str,
    attention: str,
    progress: Progress,
) -> dict[str, ExportedProgram]:
    """Export the three methods as their backend wants them, and check their graphs."""
    splits_keys = methods_splitting_keys(attention, pair)
    if backend == XNNPACK:
        fold_int4(pair)
    else:
        with progress.stage("pack"), stated("packing failed"):
            pack_int4(pair, multiprocessors())
    with progress.stage("trace"), stated("tracing failed"):
        programs = export_methods(pair, lengths, splits_keys)
    with progress.stage("check graphs"):
        check_graphs(programs, lengths, splits_keys)
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
        raise ExportError(f"{what}: {shortage(error) or first_line}") from error


def _lengths(pair: Pair, options: ExportOptions) -> MethodLengths:
    target = pair.target
    longest = options.max_prefill, target.max_seq_len, target.sliding_window
    return method_lengths(*longest, target.sequences)


def _caches(source: Source, options: ExportOptions, backend: str) -> CacheSizes:
    max_seq_len = options.max_seq_len or get_target(source.target_model).default_max_seq_len
    return CacheSizes(max_seq_len, DTYPES[backend], options.max_batch_size)
