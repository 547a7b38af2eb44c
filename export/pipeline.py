"""The steps from checkpoints to an artifact."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram

from eagle_aot.artifact import Constants, Device, Manifest, file_records
from eagle_aot.artifact.methods import STATE_BLOCK
from eagle_aot.common.progress import Progress
from eagle_aot.export.as_export_error import as_export_error
from eagle_aot.export.disk import check_disks, disk_needs
from eagle_aot.export.graph_checks import check_graphs
from eagle_aot.export.lengths import MethodLengths, choose_chain_len, method_lengths
from eagle_aot.export.loading.load import LoadedPair, linear_formats, load_by_gpu, load_pair
from eagle_aot.export.lowering.backend import Lowering, lowering
from eagle_aot.export.lowering.patches import Replacement, missing
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.methods import method_specs, trace_methods
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.cpu_weights import FLOAT32, quantize_for_cpu
from eagle_aot.export.prepare.int4 import dequantize_int4, pack_int4
from eagle_aot.export.publish.describe import (
    describe,
    describe_constants,
    describe_decisions,
    image_inputs,
    write_draft_ids,
)
from eagle_aot.export.publish.output_dir import atomic_output_dir, check_output_dir
from eagle_aot.export.resolution import ResolvedExport, resolve
from eagle_aot.export.self_test.run import check_head, pairing_record, self_test
from eagle_aot.export.self_test.verdict import RANDOM, Verdict, unknown
from eagle_aot.export.spec import CUDA, XNNPACK, ExportSpec
from eagle_aot.targets.decoder.experts import Experts
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache
from eagle_aot.targets.step import MAX_ROWS, MAX_STEP_ROWS
from eagle_aot.triton_kernels.device import multiprocessors

WORKSPACE, PARALLEL = "compiling", "compiling-in-parallel"
"""Directories for files of the compiler and of parallel processes. They are on the artifact's disk
and are deleted even if the export is killed."""


def run_export(spec: ExportSpec, progress: Progress | None = None) -> Manifest:
    """Export a pair and write its artifact. Raises EagleError."""
    return export(resolve(spec, progress))


def export(resolved: ResolvedExport) -> Manifest:
    """Load a resolved pair, export it and write its artifact. Raises EagleError."""
    checkpoints = resolved.checkpoints
    check_output_dir(resolved.output_dir)
    if resolved.spec.self_test_prompts is not None:
        check_head(checkpoints)
    checkpoints.provenance.check_tokenizer()  # before the minutes of work, not after
    with resolved.progress.stage("load"):
        loaded = load_by_gpu(
            checkpoints, resolved.dtype, resolved.cache_sizes, images=resolved.spec.reads_images
        )
    return export_pair(loaded, resolved)


def run_check(spec: ExportSpec, progress: Progress | None = None) -> dict[str, ExportedProgram]:
    """Trace the pair's methods and check their graphs; lower and write nothing.

    The graphs are the CUDA backend's unless `spec` names another one. Dummy weights are never
    allocated, so a target of any size can be checked on any machine.
    """
    return check(resolve(replace(spec, check_only=True), progress))


def check(resolved: ResolvedExport) -> dict[str, ExportedProgram]:
    """Trace the methods of a resolved pair and check their graphs."""
    is_dummy = resolved.spec.is_dummy
    with FakeTensorMode(allow_non_fake_inputs=True) if is_dummy else nullcontext():
        loaded = load(resolved)
        lengths = lengths_of(loaded.pair, resolved)
        pair = prepare(loaded.pair, resolved.backend, resolved.progress)
        methods = method_specs(pair, lengths, resolved.use_splitk)
        return trace(methods, lengths.max_batch_size, resolved.backend, resolved.progress)


def run_self_test(spec: ExportSpec, progress: Progress | None = None) -> Verdict:
    """Load the pair as for an export and test its drafter. Raises EagleError."""
    resolved = resolve(spec, progress)
    check_head(resolved.checkpoints)
    if spec.is_dummy:
        return unknown(RANDOM)
    return self_test(load(resolved), resolved.spec, resolved.progress)


def load(resolved: ResolvedExport) -> LoadedPair:
    """Load the pair on the host, with weights in the format of `cpu_weights`."""
    with resolved.progress.stage("load"):
        loaded = load_pair(
            resolved.checkpoints,
            resolved.dtype,
            resolved.cache_sizes,
            images=resolved.spec.reads_images,
        )
    return with_cpu_weights(loaded, resolved.spec.cpu_weights, resolved.progress)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PreparedExport:
    """A pair that is ready to be traced, and what its manifest needs of the steps before."""

    loaded: LoadedPair
    lengths: MethodLengths
    constants: Constants
    methods: dict[str, MethodSpec]
    self_test: dict[str, Any] | None

    @property
    def pair(self) -> Pair:
        return self.loaded.pair


def export_pair(loaded: LoadedPair, resolved: ResolvedExport) -> Manifest:
    """Write the artifact of a loaded pair.

    The pair cannot be used afterwards: packing for CUDA would hold its weights twice. Raises
    UnsupportedError for weights that cannot be packed, ExportError when tracing, checking, lowering
    or writing fails.
    """
    prepared = prepare_export(loaded, resolved)
    check_disks(resolved.output_dir, disk_needs(prepared.pair, resolved))  # before minutes of work
    with atomic_output_dir(resolved.output_dir) as directory:
        decisions, device = compile_program(prepared, directory, resolved)
        copy_files(prepared, directory)
        with resolved.progress.stage("hash"):
            files = file_records(sorted(directory.iterdir()))
        pair, constants = prepared.pair, prepared.constants
        manifest = describe(
            prepared.loaded.checkpoints,
            pair.draft.kind,
            prepared.methods,
            constants,
            files,
            options=resolved.recorded(pair.draft.kind, constants.chain_len, constants.max_seq_len),
            decisions=decisions,
            device=device,
            stages=resolved.progress.stages,
            self_test=prepared.self_test,
            images=image_inputs(pair, prepared.lengths, prepared.methods),
        )
        manifest.write(directory)
    return manifest


def prepare_export(loaded: LoadedPair, resolved: ResolvedExport) -> PreparedExport:
    """Quantize, self-test and prepare a loaded pair, and specify its methods."""
    spec, progress = resolved.spec, resolved.progress
    loaded = with_cpu_weights(loaded, spec.cpu_weights, progress)
    lengths = lengths_of(loaded.pair, resolved)
    chain_len = choose_chain_len(spec.chain_len, loaded.pair.draft.default_chain_len)
    eos_ids = loaded.checkpoints.provenance.eos_ids
    constants = describe_constants(loaded.pair, lengths, chain_len, eos_ids)
    self_test_record = pairing_record(loaded, spec, progress)
    pair = prepare(loaded.pair, resolved.backend, progress)
    return PreparedExport(
        loaded=dataclasses.replace(loaded, pair=pair),
        lengths=lengths,
        constants=constants,
        methods=method_specs(pair, lengths, resolved.use_splitk),
        self_test=self_test_record,
    )


def compile_program(
    prepared: PreparedExport, directory: Path, resolved: ResolvedExport
) -> tuple[dict[str, Any], Device | None]:
    """Trace, check and lower the methods and write the program's files.

    Returns the manifest's decisions and the device that the program was compiled for.
    """
    methods, lengths, backend = prepared.methods, prepared.lengths, resolved.backend
    parallel = in_parallel(list(methods), prepared.pair, lengths, directory / PARALLEL, resolved)
    with parallel as compiled:
        programs = trace(methods, lengths.max_batch_size, backend, resolved.progress)
        decisions = describe_decisions(
            prepared.loaded, backend, methods, programs, lengths.max_batch_size
        )
        with resolved.progress.stage("import the compiler"):
            compiler = lowering(backend)
        write_program(
            compiler, programs, prepared.constants, directory, resolved.progress, compiled
        )
    return decisions, compiler.device_record()


def copy_files(prepared: PreparedExport, directory: Path) -> None:
    """Write an artifact's files other than the program and the manifest."""
    provenance = prepared.loaded.checkpoints.provenance
    provenance.copy_tokenizer(directory)
    if prepared.lengths.image_tokens:
        provenance.copy_processor(directory)
    write_draft_ids(prepared.pair.draft, directory)


def with_cpu_weights(loaded: LoadedPair, cpu_weights: str, progress: Progress) -> LoadedPair:
    """Return the pair with weights in the format of `cpu_weights`; the self-test measures them."""
    if cpu_weights == FLOAT32:
        return loaded
    with progress.stage("quantize"):
        pair = quantize_for_cpu(loaded.pair, cpu_weights)
    return dataclasses.replace(loaded, pair=pair, linears=linear_formats(pair))


def prepare(pair: Pair, backend: str, progress: Progress) -> Pair:
    """Return the pair in the form that its backend needs; `pair` may be consumed."""
    if backend == XNNPACK:
        return dequantize_int4(pair)
    with progress.stage("pack"), as_export_error("packing failed"):
        return pack_int4(pair, multiprocessors())


def trace(
    methods: Mapping[str, MethodSpec], max_batch_size: int, backend: str, progress: Progress
) -> dict[str, ExportedProgram]:
    """Trace the methods for their backend, and check their graphs."""
    with progress.stage("trace"), as_export_error("tracing failed"):
        programs = trace_methods(methods, max_batch_size, backend)
    with progress.stage("check graphs"):
        check_graphs(programs, methods, max_batch_size)
    return programs


def in_parallel(
    names: Sequence[str],
    pair: Pair,
    lengths: MethodLengths,
    directory: Path,
    resolved: ResolvedExport,
) -> AbstractContextManager[Replacement | None]:
    """Compile methods in separate processes during the block if `--jobs` is more than one.

    Yields the argument `take_compiled` of `cuda.lower`. For XNNPACK this would gain nothing:
    compiling is a twentieth of lowering, and this process has to do the rest in any case.
    """
    jobs = min(resolved.spec.jobs, len(names))
    if resolved.backend != CUDA or jobs == 1:
        return nullcontext()
    from eagle_aot.export.lowering.parallel import Job, compiled_in_parallel

    threads = max(len(os.sched_getaffinity(0)) // jobs, 1)
    job = Job(pair, lengths, resolved.use_splitk, threads)
    return compiled_in_parallel(
        names, job, jobs=jobs, directory=directory, progress=resolved.progress
    )


def write_program(
    compiler: Lowering,
    programs: dict[str, ExportedProgram],
    constants: Constants,
    directory: Path,
    progress: Progress,
    take_compiled: Replacement | None = None,
) -> None:
    """Lower the methods and write the program's files."""
    for line in missing(compiler.PATCHES):
        progress.console.print(line, soft_wrap=True)
    with ExitStack() as stack:
        stack.enter_context(compiler.workspace(directory / WORKSPACE))
        with progress.stage("lower") as begin, as_export_error("lowering failed"):
            program = compiler.lower(programs, constants.methods(), begin, take_compiled)
        with progress.stage("write") as begin:
            compiler.write(program, directory)
            begin("clean up")
            del program  # with its files of weights
            stack.close()


def lengths_of(pair: Pair, resolved: ResolvedExport) -> MethodLengths:
    """Return the rows that the methods of a loaded pair take."""
    target = pair.target
    caches = (module for module in pair.modules() if isinstance(module, KVCache))
    chunk = min((cache.ring - cache.window for cache in caches if cache.window), default=0)
    narrow = any(isinstance(module, Experts | RecurrentCache) for module in pair.modules())
    return method_lengths(
        resolved.max_prefill,
        target.max_seq_len,
        target.sliding_window,
        target.sequences,
        chunk,
        resolved.image_tokens or (),
        MAX_ROWS if narrow else MAX_STEP_ROWS,
        STATE_BLOCK if pair.has_states else 1,
    )
