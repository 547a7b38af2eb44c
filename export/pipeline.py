"""From checkpoints to an artifact, step by step."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from msgspec.structs import replace
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram

from eagle_aot.artifact import Constants, Manifest, file_records
from eagle_aot.common.progress import Progress
from eagle_aot.export.as_export_error import as_export_error
from eagle_aot.export.graph_checks import check_graphs
from eagle_aot.export.lengths import MethodLengths, drafts_of_a_round, method_lengths
from eagle_aot.export.loading.load import LoadedPair, linear_formats, load_by_gpu, load_pair
from eagle_aot.export.lowering.backend import Lowering, lowering, multiprocessors
from eagle_aot.export.lowering.patches import Replacement, missing
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.methods import method_specs
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.cpu_weights import FLOAT32, INT4, quantize_for_cpu
from eagle_aot.export.prepare.int4 import dequantize_int4, pack_int4
from eagle_aot.export.publish.decisions import describe_decisions
from eagle_aot.export.publish.describe import describe, image_inputs, publish, write_draft_ids
from eagle_aot.export.publish.output_dir import appearing, check_disk, check_output_dir
from eagle_aot.export.resolution import ResolvedExport, resolve
from eagle_aot.export.self_test.run import check_head, pairing_record, self_test
from eagle_aot.export.self_test.verdict import RANDOM, Verdict, unknown
from eagle_aot.export.spec import CUDA, XNNPACK, ExportSpec
from eagle_aot.export.trace import traced
from eagle_aot.targets.decoder.kv_cache import KVCache

WORKSPACE, PARALLEL = "compiling", "compiling-in-parallel"
"""Directories where the compiler and parallel processes keep files until the artifact is written:
on the same disk, and deleted even if the export is killed."""


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
            checkpoints,
            resolved.dtype,
            resolved.cache_sizes,
            pictures=resolved.spec.reads_images,
        )
    return export_pair(loaded, resolved)


def run_check(spec: ExportSpec, progress: Progress | None = None) -> dict[str, ExportedProgram]:
    """Trace the pair's methods and check their graphs; lower and write nothing.

    The graphs are the CUDA backend's unless `spec` names another, on any machine. Dummy weights are
    never materialised, so a target of any size can be checked anywhere.
    """
    return check(resolve(replace(spec, check_only=True), progress))


def check(resolved: ResolvedExport) -> dict[str, ExportedProgram]:
    """Trace the methods of a resolved pair and check their graphs."""
    is_dummy = resolved.spec.is_dummy
    with FakeTensorMode(allow_non_fake_inputs=True) if is_dummy else nullcontext():
        loaded = load(resolved)
        lengths = _lengths(loaded.pair, resolved)
        pair = prepare(loaded.pair, resolved.backend, resolved.progress)
        methods = method_specs(pair, lengths, resolved.splits_keys)
        return trace(methods, lengths.max_batch_size, resolved.backend, resolved.progress)


def run_self_test(spec: ExportSpec, progress: Progress | None = None) -> Verdict:
    """Load the pair as for an export and test its drafter. Raises EagleError."""
    resolved = resolve(spec, progress)
    check_head(resolved.checkpoints)
    if spec.is_dummy:
        return unknown(RANDOM)
    return self_test(load(resolved), resolved.spec, resolved.progress)


def load(resolved: ResolvedExport) -> LoadedPair:
    """Load the pair on the host, with the weights that `cpu_weights` says."""
    with resolved.progress.stage("load"):
        loaded = load_pair(
            resolved.checkpoints,
            resolved.dtype,
            resolved.cache_sizes,
            pictures=resolved.spec.reads_images,
        )
    return with_cpu_weights(loaded, resolved.spec.cpu_weights, resolved.progress)


def export_pair(loaded: LoadedPair, resolved: ResolvedExport) -> Manifest:
    """Write the artifact of a loaded pair.

    The pair cannot be used afterwards: packing for CUDA would hold its weights twice. Raises
    UnsupportedError for weights that cannot be packed, ExportError when tracing, checking, lowering
    or writing fails.
    """
    spec, progress, backend = resolved.spec, resolved.progress, resolved.backend
    provenance = loaded.checkpoints.provenance
    loaded = with_cpu_weights(loaded, spec.cpu_weights, progress)
    lengths = _lengths(loaded.pair, resolved)
    chain_len = drafts_of_a_round(spec.chain_len, loaded.pair.draft.default_chain_len)
    constants = publish(loaded.pair, lengths, chain_len, provenance.eos_ids)
    self_test_record = pairing_record(loaded, spec, progress)
    loaded = dataclasses.replace(loaded, pair=prepare(loaded.pair, backend, progress))
    pair = loaded.pair
    codes = 2 if spec.cpu_weights == INT4 else 1  # of 4 bits take 8 until they are lowered
    saved = pair.weight_bytes if backend == CUDA and spec.jobs > 1 else 0
    check_disk(resolved.output_dir, pair.weight_bytes // codes + saved)  # before minutes of work
    methods = method_specs(pair, lengths, resolved.splits_keys)
    with appearing(resolved.output_dir) as directory:
        parallel = in_parallel(list(methods), pair, lengths, directory / PARALLEL, resolved)
        with parallel as compiled:
            programs = trace(methods, lengths.max_batch_size, backend, progress)
            decisions = describe_decisions(
                loaded, backend, methods, programs, lengths.max_batch_size
            )
            with progress.stage("import the compiler"):
                compiler = lowering(backend)
            write_program(compiler, programs, constants, directory, progress, compiled)
        provenance.copy_tokenizer(directory)
        if lengths.image_tokens:
            provenance.copy_processor(directory)
        write_draft_ids(pair.draft, directory)
        with progress.stage("hash"):
            files = file_records(sorted(directory.iterdir()))
        manifest = describe(
            loaded.checkpoints,
            pair.draft.kind,
            methods,
            constants,
            files,
            options=resolved.recorded(pair.draft.kind, chain_len, pair.target.max_seq_len),
            decisions=decisions,
            device=compiler.device_record(),
            stages=progress.stages,
            self_test=self_test_record,
            images=image_inputs(pair, lengths, methods),
        )
        manifest.write(directory)
    return manifest


def with_cpu_weights(loaded: LoadedPair, cpu_weights: str, progress: Progress) -> LoadedPair:
    """Return the pair with the weights that `cpu_weights` says, which the self-test must test."""
    if cpu_weights == FLOAT32:
        return loaded
    with progress.stage("quantise"):
        pair = quantize_for_cpu(loaded.pair, cpu_weights)
    return dataclasses.replace(loaded, pair=pair, linears=linear_formats(pair))


def prepare(pair: Pair, backend: str, progress: Progress) -> Pair:
    """Return the pair as its backend needs it; `pair` may be consumed."""
    if backend == XNNPACK:
        return dequantize_int4(pair)
    with progress.stage("pack"), as_export_error("packing failed"):
        return pack_int4(pair, multiprocessors())


def trace(
    methods: Mapping[str, MethodSpec], max_batch_size: int, backend: str, progress: Progress
) -> dict[str, ExportedProgram]:
    """Export the methods as their backend wants them, and check their graphs."""
    with progress.stage("trace"), as_export_error("tracing failed"):
        programs = traced(methods, max_batch_size, backend)
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
    """Compile methods in separate processes during the block, if `--jobs` is more than one.

    Yields what `cuda.lower` takes as `take_compiled`.

    XNNPACK's methods would gain nothing: compiling is a twentieth of lowering them, and this
    process has to do the rest in any case.
    """
    jobs = min(resolved.spec.jobs, len(names))
    if resolved.backend != CUDA or jobs == 1:
        return nullcontext()
    from eagle_aot.export.lowering.parallel import Job, compiled_in_parallel

    threads = max(len(os.sched_getaffinity(0)) // jobs, 1)
    job = Job(pair, lengths, resolved.splits_keys, threads)
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
            del program  # and files of weights with it
            stack.close()


def _lengths(pair: Pair, resolved: ResolvedExport) -> MethodLengths:
    target = pair.target
    caches = (module for module in pair.modules() if isinstance(module, KVCache))
    room = min((cache.ring - cache.window for cache in caches if cache.window), default=0)
    return method_lengths(
        resolved.max_prefill,
        target.max_seq_len,
        target.sliding_window,
        target.sequences,
        room,
        resolved.image_tokens or (),
    )
