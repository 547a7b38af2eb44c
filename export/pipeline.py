"""From checkpoints to an artifact, step by step."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram

from eagle_aot.artifact import Constants, Manifest, file_records
from eagle_aot.common.progress import Progress
from eagle_aot.export.graph_checks import check_graphs
from eagle_aot.export.lengths import MethodLengths, drafts_of_a_round, method_lengths
from eagle_aot.export.loading.load import LoadedPair, linear_formats, load_by_gpu, load_pair
from eagle_aot.export.loading.source import Source
from eagle_aot.export.lowering.backend import (
    AUTO,
    CUDA,
    DTYPES,
    XNNPACK,
    Lowering,
    choose_backend,
    lowering,
    multiprocessors,
)
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.methods import method_specs
from eagle_aot.export.options import ExportOptions
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.attention import SPLITK, choose_attention
from eagle_aot.export.prepare.cpu_weights import FLOAT32, INT4, quantize_for_cpu
from eagle_aot.export.prepare.int4 import dequantize_int4, pack_int4
from eagle_aot.export.publish.decisions import describe_decisions
from eagle_aot.export.publish.describe import describe, image_inputs, publish, write_draft_ids
from eagle_aot.export.publish.output_dir import appearing, check_disk, check_output_dir
from eagle_aot.export.self_test.run import check_head, pairing_record, self_test
from eagle_aot.export.self_test.verdict import RANDOM, Verdict, unknown
from eagle_aot.export.stated import stated
from eagle_aot.export.trace import traced
from eagle_aot.targets import get_target
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache

DEFAULT_MAX_PREFILL = {CUDA: 1536, XNNPACK: 512}
WORKSPACE = "compiling"
"""Where a compiler keeps its files until the artifact is written: on the same disk, and gone with
it when the export is killed."""
BESIDE = "compiling-beside"
"""Where processes beside this one keep theirs, likewise."""


def run_export(source: Source, output_dir: Path, options: ExportOptions) -> Manifest:
    """Load the pair, export it and write the artifact. Raises EagleError."""
    backend = choose_backend(options.backend)
    options = replace(options, backend=backend)
    choose_attention(options.attention, backend)
    check_output_dir(output_dir)
    if options.self_test_prompts is not None:
        check_head(source)
    source.provenance.check_tokenizer()  # before the minutes of work, not after
    with options.progress.stage("load"):
        sizes = _caches(source, options, backend)
        loaded = load_by_gpu(source, DTYPES[backend], sizes, pictures=options.reads_pictures)
    return export_pair(loaded, output_dir, options=options)


def run_check(source: Source, options: ExportOptions) -> dict[str, ExportedProgram]:
    """Trace the pair's methods and check their graphs; lower nothing, write nothing.

    Unless another backend is asked for these are the CUDA backend's graphs, on any machine. Dummy
    weights are never materialised, so a target of any size can be checked anywhere.
    """
    backend = CUDA if options.backend == AUTO else options.backend
    options = replace(options, backend=backend)
    attention = choose_attention(options.attention, backend)
    with FakeTensorMode(allow_non_fake_inputs=True) if source.is_dummy else nullcontext():
        with options.progress.stage("load"):
            sizes = _caches(source, options, backend)
            loaded = load_pair(source, DTYPES[backend], sizes, pictures=options.reads_pictures)
        options = replace(options, image_tokens=_image_tokens(source, options))
        loaded = with_cpu_weights(loaded, options)
        lengths = _lengths(loaded.pair, options)
        prepared = prepare(loaded.pair, backend, options.progress)
        methods = method_specs(prepared, lengths, attention == SPLITK)
        return trace(methods, lengths.max_batch_size, options.backend, options.progress)


def run_self_test(source: Source, options: ExportOptions) -> Verdict:
    """Load the pair as for an export and let its drafter be tested. Raises EagleError."""
    backend = choose_backend(options.backend)
    options = replace(options, backend=backend)
    check_head(source)
    if source.is_dummy:
        return unknown(RANDOM)
    options = replace(options, image_tokens=_image_tokens(source, options))
    with options.progress.stage("load"):
        sizes = _caches(source, options, backend)
        loaded = load_pair(source, DTYPES[backend], sizes, pictures=options.reads_pictures)
    return self_test(with_cpu_weights(loaded, options), backend, options)


def export_pair(
    loaded: LoadedPair, output_dir: str | Path, *, options: ExportOptions | None = None
) -> Manifest:
    """Write the artifact of a loaded pair into `output_dir`.

    The pair is given up for it: packing for CUDA would hold its weights twice. Raises
    UnsupportedError for weights that cannot be packed, ExportError when tracing, checking, lowering
    or writing fails.
    """
    options = chosen(loaded, options or ExportOptions())
    loaded = with_cpu_weights(loaded, options)
    progress, backend, provenance = options.progress, options.backend, loaded.source.provenance
    lengths = _lengths(loaded.pair, options)
    chain_len = drafts_of_a_round(options.chain_len, loaded.pair.draft.default_chain_len)
    constants = publish(loaded.pair, lengths, chain_len, provenance.eos_ids)
    self_test_record = pairing_record(loaded, backend, options)
    loaded = replace(loaded, pair=prepare(loaded.pair, backend, progress))
    pair = loaded.pair
    codes = 2 if options.cpu_weights == INT4 else 1  # of 4 bits take 8 until they are lowered
    check_disk(Path(output_dir), pair.weight_bytes // codes)  # before the minutes of work
    methods = method_specs(pair, lengths, options.attention == SPLITK)
    with appearing(Path(output_dir)) as directory:
        with beside(list(methods), pair, lengths, directory / BESIDE, options):
            programs = trace(methods, lengths.max_batch_size, options.backend, progress)
            sequences = lengths.max_batch_size
            decisions = describe_decisions(loaded, backend, methods, programs, sequences)
            with progress.stage("import the compiler"):
                compiler = lowering(backend)
            write_program(compiler, programs, constants, directory, progress)
        provenance.copy_tokenizer(directory)
        if lengths.image_tokens:
            provenance.copy_processor(directory)
        write_draft_ids(pair.draft, directory)
        with progress.stage("hash"):
            files = file_records(sorted(directory.iterdir()))
        manifest = describe(
            loaded.source,
            pair.draft.kind,
            methods,
            constants,
            files,
            options=options,
            decisions=decisions,
            device=compiler.device_record(),
            stages=progress.stages,
            self_test=self_test_record,
            images=image_inputs(pair, lengths, methods),
        )
        manifest.write(directory)
    return manifest


def chosen(loaded: LoadedPair, options: ExportOptions) -> ExportOptions:
    """Returns the options with everything named that was left to backend, target or drafter."""
    backend, pair = choose_backend(options.backend), loaded.pair
    options = replace(options, image_tokens=_image_tokens(loaded.source, options))
    return replace(
        options,
        backend=backend,
        attention=choose_attention(options.attention, backend),
        chain_len=drafts_of_a_round(options.chain_len, pair.draft.default_chain_len),
        max_prefill=_max_prefill(options, backend),
        max_seq_len=pair.target.max_seq_len,
    )


def with_cpu_weights(loaded: LoadedPair, options: ExportOptions) -> LoadedPair:
    """Return the pair with weights as `--cpu-weights` says, which is the pair to self-test."""
    if options.cpu_weights == FLOAT32:
        return loaded
    with options.progress.stage("quantise"):
        pair = quantize_for_cpu(loaded.pair, options.cpu_weights)
    return replace(loaded, pair=pair, linears=linear_formats(pair))


def prepare(pair: Pair, backend: str, progress: Progress) -> Pair:
    """Return the pair as its backend needs it; `pair` may be consumed."""
    if backend == XNNPACK:
        return dequantize_int4(pair)
    with progress.stage("pack"), stated("packing failed"):
        return pack_int4(pair, multiprocessors())


def trace(
    methods: Mapping[str, MethodSpec], max_batch_size: int, backend: str, progress: Progress
) -> dict[str, ExportedProgram]:
    """Export the methods as their backend wants them, and check their graphs."""
    with progress.stage("trace"), stated("tracing failed"):
        programs = traced(methods, max_batch_size, backend)
    with progress.stage("check graphs"):
        check_graphs(programs, methods, max_batch_size)
    return programs


def beside(
    names: Sequence[str],
    pair: Pair,
    lengths: MethodLengths,
    directory: Path,
    options: ExportOptions,
) -> AbstractContextManager[None]:
    """Around the work on methods: lowers them in processes beside this one, if options ask for it.

    XNNPACK's would gain nothing: compiling is a twentieth of lowering them, and what is before that
    is done here in any case.
    """
    jobs = min(options.jobs, len(names))
    if options.backend != CUDA or jobs == 1:
        return nullcontext()
    from eagle_aot.export.lowering.side_by_side.processes import lowered_beside

    return lowered_beside(
        names,
        pair,
        lengths,
        splits_keys=options.attention == SPLITK,
        jobs=jobs,
        gpu_memory=options.gpu_memory,
        directory=directory,
        progress=options.progress,
    )


def write_program(
    compiler: Lowering,
    programs: dict[str, ExportedProgram],
    constants: Constants,
    directory: Path,
    progress: Progress,
) -> None:
    """Lower the methods and write the program's files."""
    with ExitStack() as stack:
        stack.enter_context(compiler.workspace(directory / WORKSPACE))
        with progress.stage("lower") as begin, stated("lowering failed"):
            program = compiler.lower(programs, constants.methods(), begin)
        with progress.stage("write") as begin:
            compiler.write(program, directory)
            begin("clean up")
            del program  # and files of weights with it
            stack.close()


def _lengths(pair: Pair, options: ExportOptions) -> MethodLengths:
    target = pair.target
    caches = (module for module in pair.modules() if isinstance(module, KVCache))
    room = min((cache.ring - cache.window for cache in caches if cache.window), default=0)
    longest = _max_prefill(options, options.backend), target.max_seq_len, target.sliding_window
    return method_lengths(*longest, target.sequences, room, options.image_tokens or ())


def _image_tokens(source: Source, options: ExportOptions) -> tuple[int, ...] | None:
    """Rows that a picture may take: those asked for, or what the checkpoint says."""
    if not options.reads_pictures:
        return None
    return options.image_tokens or (source.provenance.image_tokens,)


def _caches(source: Source, options: ExportOptions, backend: str) -> CacheSpec:
    max_seq_len = options.max_seq_len or get_target(source.target_model).default_max_seq_len
    # On a CPU a row is reduced over all of a ring, and long chunks are no faster.
    chunk = min(_max_prefill(options, backend), max_seq_len) if backend == CUDA else 0
    chunk = max(chunk, *_image_tokens(source, options) or (0,))  # a picture lies in one
    return CacheSpec(max_seq_len, DTYPES[backend], options.max_batch_size, chunk)


def _max_prefill(options: ExportOptions, backend: str) -> int:
    return options.max_prefill or max(DEFAULT_MAX_PREFILL[backend], *options.image_tokens or (0,))
