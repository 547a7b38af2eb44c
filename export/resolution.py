"""Every choice of an export that needs no weights, made once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from eagle_aot.artifact import LOSSLESS
from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.common.progress import Progress
from eagle_aot.common.spec import recorded
from eagle_aot.export.lengths import check_image_tokens
from eagle_aot.export.loading.checkpoints import (
    ResolvedCheckpoints,
    resolve_checkpoints,
    target_name,
)
from eagle_aot.export.lowering.backend import DTYPES, choose_backend
from eagle_aot.export.spec import (
    AUTO,
    CUDA,
    FLOAT32,
    SPLITK,
    XNNPACK,
    Attention,
    Backend,
    ExportSpec,
)
from eagle_aot.targets import TARGETS, TargetSpec, get_target
from eagle_aot.targets.checkpoint import read_config, read_quantization
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.registry import has_experts

DEFAULT_MAX_PREFILL = {CUDA: 1536, XNNPACK: 512}


@dataclass(frozen=True, kw_only=True)
class ResolvedExport:
    """An export whose backend, target, drafter, attention and lengths are chosen.

    `image_tokens` are the rows that an image may take, the default first; None for text alone.
    """

    checkpoints: ResolvedCheckpoints
    image_tokens: tuple[int, ...] | None
    max_prefill: int
    cache_sizes: CacheSpec
    progress: Progress = field(compare=False)

    @property
    def spec(self) -> ExportSpec:
        """The options, in which every choice but lengths is made."""
        return self.checkpoints.spec

    @property
    def backend(self) -> str:
        """The backend's name, never "auto"."""
        return self.spec.backend

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return DTYPES[self.backend]

    @property
    def use_splitk(self) -> bool:
        """Whether methods attend with the project's operators."""
        return self.spec.attention == SPLITK

    @property
    def output_dir(self) -> Path:
        return self.spec.output_dir or Path(f"{self.spec.target_model}-{self.backend}")

    def recorded(self, drafter: str, chain_len: int, max_seq_len: int) -> dict[str, Any]:
        """Return the options for a manifest; the arguments are what the loaded pair decides."""
        return recorded(self.spec) | {
            "drafter": drafter,
            "chain_len": chain_len,
            "max_seq_len": max_seq_len,
            "max_prefill": self.max_prefill,
            "image_tokens": self.image_tokens,
        }


def resolve(spec: ExportSpec, progress: Progress | None = None) -> ResolvedExport:
    """Choose what a spec leaves open, and check it, before anything is loaded.

    An export chooses a backend that can compile on this machine. With `check_only` the backend is
    CUDA unless `spec` names one, on any machine. Raises EagleError.
    """
    progress = progress or Progress()
    check_experts(spec)  # before a download where the name says it, and after one
    backend = _backend(spec)
    if spec.table_quant == LOSSLESS and backend != CUDA:
        raise SettingError(f"--table-quant {LOSSLESS}: its kernels run on cuda; leave it out here")
    checkpoints = resolve_checkpoints(_with_backend(spec, backend), progress)
    check_experts(replace(checkpoints.spec, backend=spec.backend))
    image_tokens = _image_tokens(checkpoints)
    max_prefill = spec.max_prefill or max(
        DEFAULT_MAX_PREFILL[checkpoints.spec.backend], *image_tokens or (0,)
    )
    return ResolvedExport(
        checkpoints=checkpoints,
        image_tokens=image_tokens,
        max_prefill=max_prefill,
        cache_sizes=_cache_sizes(checkpoints.spec, max_prefill, image_tokens),
        progress=progress,
    )


def _backend(spec: ExportSpec) -> Backend:
    if spec.backend == AUTO and spec.cpu_weights != FLOAT32:
        return "xnnpack"
    if spec.check_only:
        return "cuda" if spec.backend == AUTO else spec.backend
    return choose_backend(spec.backend)


def _with_backend(spec: ExportSpec, backend: Backend) -> ExportSpec:
    attention = choose_attention(spec.attention, backend)
    return replace(spec, backend=backend, attention=attention)


def check_experts(spec: ExportSpec) -> bool:
    """Return whether the target is known to have experts.

    Raises UnsupportedError for options that no target with experts takes.
    """
    line = TARGETS.get(str(spec.target_model))
    if spec.target_dir is not None:
        experts = has_experts(read_config(spec.target_dir))
    else:
        experts = line is not None and line.has_experts
    if experts and spec.backend == CUDA and _is_dense(spec, line):
        raise UnsupportedError(
            f"--backend cuda: {spec.target_model} has dense experts, and the kernels there read "
            "INT4: add --quantize int4-g32, or use --backend xnnpack"
        )
    return experts


def _is_dense(spec: ExportSpec, line: TargetSpec | None) -> bool:
    """Whether the checkpoint of a target is dense, and stays so."""
    if spec.is_dummy or spec.quantize is not None:
        return False
    if spec.target_dir is None:
        return line is not None and not line.is_int4
    config = read_config(spec.target_dir)
    return spec.target_dir.is_dir() and not read_quantization(spec.target_dir, config).values


def _image_tokens(checkpoints: ResolvedCheckpoints) -> tuple[int, ...] | None:
    spec = checkpoints.spec
    if not spec.reads_images:
        return None
    if spec.image_tokens is not None:
        check_image_tokens(spec.image_tokens)
        return spec.image_tokens
    return (checkpoints.provenance.image_tokens,)


def _cache_sizes(
    spec: ExportSpec, max_prefill: int, image_tokens: tuple[int, ...] | None
) -> CacheSpec:
    max_seq_len = spec.max_seq_len or get_target(target_name(spec)).default_max_seq_len
    # On a CPU a row is reduced over all of a ring, and long chunks are no faster.
    chunk = min(max_prefill, max_seq_len) if spec.backend == CUDA else 0
    chunk = max(chunk, *image_tokens or (0,))  # an image is in one chunk
    int8 = spec.kv_cache_dtype == "int8"
    if int8 and spec.backend != CUDA:
        raise SettingError("--kv-cache-dtype int8: its kernels run on cuda; leave it out here")
    dtype = torch.int8 if int8 else DTYPES[spec.backend]
    by_token = spec.attention == SPLITK
    return CacheSpec(max_seq_len, dtype, spec.max_batch_size, chunk, by_token=by_token)


def choose_attention(requested: Attention | None, backend: Backend) -> Attention:
    """Return `requested`, by default the project's operators where the backend has them.

    Raises SettingError for the project's operators on a backend without them.
    """
    if backend == XNNPACK and requested == SPLITK:
        raise SettingError("attention splitk: its kernels run on CUDA; leave it out for xnnpack")
    return requested or ("stock" if backend == XNNPACK else "splitk")
