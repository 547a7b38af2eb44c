"""The plan of an export: what it needs and what it will write, before minutes of work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch._subclasses import FakeTensorMode

from eagle_aot.artifact import EAGLE3, MTP, NGRAM
from eagle_aot.common.errors import (
    EagleError,
    ExportError,
    HubError,
    SettingError,
    UnsupportedError,
)
from eagle_aot.common.hub import Repository
from eagle_aot.common.memory import free_bytes, in_binary
from eagle_aot.common.text import gigabytes
from eagle_aot.export.disk import DiskNeeds, check_disks, disk_needs
from eagle_aot.export.drafters.registry import name_of_kind, own_drafter
from eagle_aot.export.loading.configs import config_directory
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.loading.locate import locate_config, plan_downloads, short_name
from eagle_aot.export.methods import method_specs
from eagle_aot.export.pipeline import lengths_of
from eagle_aot.export.prepare.cpu_weights import FLOAT32, INT4, INT8, quantize_for_cpu
from eagle_aot.export.prepare.int4 import dequantize_int4
from eagle_aot.export.publish.describe import cache_bytes
from eagle_aot.export.resolution import check_experts, resolve
from eagle_aot.export.spec import AUTO, CUDA, DUMMY, XNNPACK, ExportSpec
from eagle_aot.targets import TARGETS, TargetSpec
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.recorded import RECORDED_EXPORTS, RecordedExport
from eagle_aot.targets.registry import name_of_repository

# Measured peaks, of gemma4-tiny and SmolLM2 on a CPU, of gemma4-31b on an H100 80GB.
PROCESS = 600_000_000
"""Bytes of a process that has the compiler and no weights."""
HOST_PER_FLOAT32, HOST_PER_WEIGHTS = 3.5, 2.8
"""Host memory that an export for XNNPACK needs: in sizes of all weights in float32, and in sizes of
the weights that it writes."""
JOB = 900_000_000
"""Bytes on the host of a process that compiles a method for CUDA."""
GPU_PER_WEIGHTS = 1.07
SMALLER = {
    XNNPACK: (("cpu_weights", "int8"), ("cpu_weights", "int4")),
    CUDA: (("quantize", "int4-g32"),),
}
"""Settings with which weights are smaller, by backend."""
LAYERS = "target.layers."
STEP = 256
"""Suggestions of --max-seq-len are multiples of it."""
NO_LENGTH = "no --max-seq-len would fit: lower --max-batch-size or --max-prefill"


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an export needs and writes. All sizes are bytes.

    `host_bytes` and `gpu_bytes` are estimates of peaks, within 10% of those that were measured;
    `gpu_bytes` is 0 for XNNPACK. A runner needs `weight_bytes` and `cache_bytes`, in which each
    token of `max_seq_len` has `cache_bytes_per_token`. `methods` have their least and most rows.
    """

    target: str
    backend: str
    drafter: str
    max_seq_len: int
    weight_bytes: int
    max_batch_size: int
    cache_bytes: int
    cache_bytes_per_token: int
    disk: DiskNeeds
    host_bytes: int
    gpu_bytes: int
    methods: dict[str, tuple[int, int]]

    @property
    def disk_bytes(self) -> int:
        """What the artifact's disk needs if the compiler's files are on it, too."""
        return self.disk.together

    @property
    def recorded(self) -> list[RecordedExport]:
        """Exports of this target for this backend whose times are known."""
        return [r for r in RECORDED_EXPORTS.get(self.target, ()) if r.backend == self.backend]

    def to_json(self) -> dict[str, Any]:
        times = [msgspec.to_builtins(record) for record in self.recorded]
        return {**msgspec.to_builtins(self), "disk_bytes": self.disk_bytes, "recorded": times}

    def report(self) -> Iterator[str]:
        """Yield the plan as lines of text."""
        gpu = f", about {gigabytes(self.gpu_bytes)} on the GPU" if self.gpu_bytes else ""
        yield (
            f"{self.target} for {self.backend} needs {gigabytes(self.disk_bytes)} of disk, about "
            f"{gigabytes(self.host_bytes)} of host memory{gpu}"
        )
        rows = ", ".join(f"{name} {low}..{high}" for name, (low, high) in self.methods.items())
        yield f"the artifact: {gigabytes(self.weight_bytes)} of weights; rows of methods: {rows}"
        yield (
            f"to run it: weights and {gigabytes(self.cache_bytes)} of caches for "
            f"{self.max_seq_len:,} tokens of context"
        )
        if self.recorded:
            yield f"recorded: {'; '.join(map(str, self.recorded))}"


def plan_export(spec: ExportSpec) -> ExportPlan | None:
    """Plan the export of a registered target, a directory, a repository or a GGUF file; None for a
    recorded export and where the target is not named.

    No weights are downloaded or loaded, only a repository's config and other small files; of a
    GGUF file its metadata. Tensors are fake, and the head is a dummy of its kind. Raises what
    `resolve` raises, and CheckpointError and UnsupportedError for a target that is not read.
    """
    if spec.reproduce is not None:
        return None
    located = _located(spec)
    check_experts(located)  # a plan is made of dummies, which no check refuses
    line = TARGETS.get(str(located.target_model))
    if line is None and located.target_dir is None:
        return None  # a family without a directory, which the export refuses
    resolved = resolve(_geometry(located))
    on_gpu = resolved.backend == CUDA
    with FakeTensorMode(allow_non_fake_inputs=True):
        images = resolved.spec.reads_images
        loaded = load_pair(
            resolved.checkpoints, resolved.dtype, resolved.cache_sizes, images=images
        ).pair
        pair = dense = loaded
        if not on_gpu or _is_dense(resolved.spec, spec, line):
            pair = dense = dequantize_int4(loaded, LAYERS if on_gpu else "")
        if resolved.spec.cpu_weights != FLOAT32:
            pair = quantize_for_cpu(loaded, INT8)  # INT4's search for scales takes minutes
        lengths = lengths_of(pair, resolved)
        methods = method_specs(pair, lengths, resolved.use_splitk)
    jobs = min(spec.jobs, len(methods))
    weights = pair.weight_bytes // (2 if resolved.spec.cpu_weights == INT4 else 1)
    on_host = HOST_PER_FLOAT32 * dense.weight_bytes + HOST_PER_WEIGHTS * weights
    if on_gpu:
        on_host = weights + jobs * JOB
    flat = [m for m in pair.modules() if isinstance(m, KVCache) and not m.window]
    return ExportPlan(
        target=_name(spec, line, resolved.spec),
        backend=resolved.backend,
        drafter=pair.draft.kind,
        max_seq_len=resolved.cache_sizes.max_seq_len,
        weight_bytes=weights,
        max_batch_size=lengths.max_batch_size,
        cache_bytes=cache_bytes(methods, lengths.max_batch_size).bytes,
        cache_bytes_per_token=sum((m.k.nbytes + m.v.nbytes) // m.slots for m in flat),
        disk=disk_needs(pair, resolved),
        host_bytes=int(PROCESS + on_host),
        gpu_bytes=int(GPU_PER_WEIGHTS * weights) if on_gpu else 0,
        methods={name: (method.min_rows, method.max_rows) for name, method in methods.items()},
    )


def _name(spec: ExportSpec, line: TargetSpec | None, resolved: ExportSpec) -> str:
    """Return the registered name of a target, or what its artifact is called."""
    if line is not None:
        return line.name
    name = short_name(spec)
    return str(resolved.target_model) if name == AUTO else name


def _located(spec: ExportSpec) -> ExportSpec:
    """Return a spec with the directories of configs in place of names, but for registered targets
    alone: their geometry is known. Raises as `plan_export` does."""
    is_line = spec.target_dir is None and str(spec.target_model) in TARGETS
    if spec.is_dummy:
        return locate_config(spec)
    if is_line and spec.draft_model is None:
        return spec
    try:
        named, downloads = plan_downloads(spec)
    except HubError:
        repository = Repository.parse(str(spec.target_model))
        name = AUTO if repository is None else name_of_repository(repository.id)
        if name == AUTO:
            raise
        return replace(spec, target_model=name)  # whose geometry needs no Hub
    directories = {option: config_directory(plan) for option, plan in downloads.items()}
    return replace(named, **directories)


def _geometry(spec: ExportSpec) -> ExportSpec:
    """Return the options of a dummy of the same sizes and the same kind of head."""
    is_line = spec.target_dir is None
    return replace(
        spec,
        load_format=DUMMY,
        drafter=_drafter(spec),
        draft_dir=None,
        draft_model=None,
        revision=None,
        tap_layers=None,
        quantize=None if is_line else spec.quantize,
        self_test_prompts=None,
    )


def _drafter(spec: ExportSpec) -> Any:
    """Return the kind of the drafter; "auto" for the one of dummies."""
    if spec.is_dummy or spec.drafter != AUTO:
        return spec.drafter
    if spec.draft_dir is not None:
        return name_of_kind(Checkpoint(spec.draft_dir, needs_weights=False))
    line = TARGETS.get(str(spec.target_model))
    if line is not None and line.draft_dir is not None:
        return EAGLE3
    if spec.target_dir is not None:
        return own_drafter(spec.target_dir)
    assert line is not None
    return MTP if line.has_mtp else next(iter(line.heads), NGRAM)


def _is_dense(resolved: ExportSpec, spec: ExportSpec, line: TargetSpec | None) -> bool:
    """Whether CUDA would run dense linears where the dummy of a registered target has INT4."""
    if spec.is_dummy or spec.quantize is not None or resolved.target_dir is not None:
        return False
    return line is not None and line.repository is not None and not line.is_int4


def ships(spec: ExportSpec) -> bool:
    """Whether the target ships with the package, so that its export takes no long work."""
    line = TARGETS.get(str(spec.target_model))
    return line is not None and line.target_dir is not None


def download_bytes(spec: ExportSpec) -> int | None:
    """Return the bytes that the export would download; None if that is not known here."""
    try:
        return sum(download.bytes for download in plan_downloads(spec)[1].values())
    except EagleError:
        return None


def check_machine(plan: ExportPlan, spec: ExportSpec) -> None:
    """Raise ExportError where the disk, the host or the GPU cannot hold the weights.

    Only what is certain ends an export: estimates of peaks do not.
    """
    try:
        check_disks(spec.output_dir or Path(f"{plan.target}-{plan.backend}"), plan.disk)
    except ExportError as error:
        if plan.backend == CUDA and spec.jobs > 1:
            alone = plan_export(replace(spec, jobs=1, check_only=True))
            assert alone is not None
            raise ExportError(f"{error}; --jobs 1 takes {in_binary(alone.disk_bytes)}") from error
        raise
    for device, copies in (("cpu", 1 if plan.backend == CUDA else 2), ("cuda", 1)):
        if device == CUDA != plan.backend:
            continue
        free, least = free_bytes(torch.device(device)), copies * plan.weight_bytes
        if free is not None and free < least:
            where = "the GPU" if device == CUDA else "the host"
            raise ExportError(
                f"{plan.target}: weights take {gigabytes(least)} on {where}, and "
                f"{gigabytes(free)} are free: {_smaller(spec, plan, free)}"
            )


def _smaller(spec: ExportSpec, plan: ExportPlan, free: int) -> str:
    """Return the setting with which the weights would fit, or what to do."""
    copies = 1 if plan.backend == CUDA else 2
    for option, value in SMALLER[plan.backend]:
        changed: dict[str, Any] = {"backend": plan.backend, option: value}
        try:
            smaller = plan_export(replace(spec, check_only=True, **changed))
        except (SettingError, UnsupportedError):
            continue  # another option excludes it
        if smaller is not None and copies * smaller.weight_bytes <= free:
            return f"--{option.replace('_', '-')} {value} would fit"
    return "no setting would fit: name a smaller target, or use a larger machine"


def exporting_line(plan: ExportPlan) -> str:
    """Return what is free where the export may take more of the host's memory; empty elsewhere."""
    free = free_bytes(torch.device("cpu"))
    elsewhere = plan.backend == CUDA and not torch.cuda.is_available()
    if elsewhere or free is None or plan.host_bytes <= free:
        return ""
    return f"to export it here {gigabytes(free)} of host memory are free: it may be killed"


def running_line(plan: ExportPlan) -> str:
    """Return what fits where the artifact's caches do not all fit into the memory of this machine;
    empty if they do. Texts share a GPU's memory; a host has the caches of all sequences."""
    if plan.backend == CUDA and not torch.cuda.is_available():
        return ""
    free = free_bytes(torch.device("cuda" if plan.backend == CUDA else "cpu"))
    rest = plan.cache_bytes - plan.cache_bytes_per_token * plan.max_seq_len
    if free is None or plan.weight_bytes + plan.cache_bytes <= free:
        return ""
    texts = (free - plan.weight_bytes) * plan.max_batch_size // max(plan.cache_bytes, 1)
    if plan.backend == CUDA and texts > 0:
        return f"to run it here {gigabytes(free)} are free: {texts} texts of full length share them"
    tokens = (free - plan.weight_bytes - rest) // max(plan.cache_bytes_per_token, 1)
    longest = tokens // STEP * STEP
    fits = f"--max-seq-len {longest} would fit" if longest > 0 else NO_LENGTH
    return f"to run it here {gigabytes(free)} are free: {fits}"
