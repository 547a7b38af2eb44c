"""Launches the kernel of `kernel.cu`, which a program gets in place of a Triton kernel.

Importing this module needs triton. AOTInductor takes Triton kernels alone into a program. So
`layer_products_kernel` has the arguments of the CUDA kernel and says what it writes; within
`compiled_from_cuda`, Triton's last stages compile `kernel.cu` instead of it.
"""

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.int4_gemm import small_m
from eagle_aot.triton_kernels.layer_products.macros import packed_shape, shapes_of
from eagle_aot.triton_kernels.layer_products.op import ROWS, SETS, SHARED, WARPS, composed
from eagle_aot.triton_kernels.residual_norm import kernel as residual_norm
from eagle_aot.triton_kernels.row_tiling import one_if_positive

SOURCE = Path(__file__).with_name("kernel.cu")
LAUNCHED_WARPS = SETS * (WARPS + 1)
MARK = "compiled from kernel.cu:"


@triton.jit(do_not_specialize=["rows", "attends"])
def layer_products_kernel(
    attended_ptr: tl.tensor,
    stream_ptr: tl.tensor,
    o_codes_ptr: tl.tensor,
    o_scales_ptr: tl.tensor,
    gate_codes_ptr: tl.tensor,
    gate_scales_ptr: tl.tensor,
    down_codes_ptr: tl.tensor,
    down_scales_ptr: tl.tensor,
    qkv_codes_ptr: tl.tensor,
    qkv_scales_ptr: tl.tensor,
    post1_ptr: tl.tensor,
    next1_ptr: tl.tensor,
    post2_ptr: tl.tensor,
    scale2_ptr: tl.tensor,
    next2_ptr: tl.tensor,
    exchanged_ptr: tl.tensor,
    emptied_ptr: tl.tensor,
    stream1_ptr: tl.tensor,
    stream2_ptr: tl.tensor,
    normed2_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    of_o: tl.tensor,
    of_qkv: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    attended2_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    q_weight_ptr: tl.tensor,
    k_weight_ptr: tl.tensor,
    row_slots_ptr: tl.tensor,
    sources_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    tail_ptr: tl.tensor,
    attends: tl.tensor,
    CUDA: tl.constexpr,
) -> None:
    """Stand for the kernel of `kernel.cu`: its arguments, and stores to all that others may read.

    CUDA names sizes and the source's digest; it is no instruction, so nothing assembles this. Torch
    could copy what is exchanged if it seemed to be stored to."""
    number = tl.inline_asm_elementwise(CUDA, "=r,r", [rows], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(emptied_ptr, number)
    tl.store(stream1_ptr, number.to(stream1_ptr.dtype.element_ty))
    tl.store(stream2_ptr, number.to(stream2_ptr.dtype.element_ty))
    tl.store(normed2_ptr, number.to(normed2_ptr.dtype.element_ty))
    tl.store(out_ptr, number.to(out_ptr.dtype.element_ty))
    tl.store(k_ptr, number.to(k_ptr.dtype.element_ty))
    tl.store(v_ptr, number.to(v_ptr.dtype.element_ty))
    tl.store(attended2_ptr, number.to(attended2_ptr.dtype.element_ty))


def launch(*layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Launch the kernels; arguments and results are those of `op.layer_products`, [S, 1, R, N],
    twice [1, R, H] and what the next one exchanges.

    For every number of rows either this kernel's grid is empty or those of all others are.
    """
    results, operands = prepare(*layer)
    stream, *_, multiprocessors, macros = layer[1:]
    entries = [stream.new_empty(1) for _ in range(3)]  # nothing attends
    angles, integers = (stream.new_empty(1, dtype=kind) for kind in (torch.float32, torch.int64))
    few = one_if_positive(ROWS + 1 - stream.shape[-2])
    not_one = 3 - few  # a symbol, as where heads attend: for a number torch makes another kernel
    nothing = *entries, angles, angles, stream, stream, *(integers for _ in range(6)), not_one
    wrap_triton(layer_products_kernel)[(multiprocessors * few,)](
        *operands, *nothing, CUDA=described(macros)
    )
    return results


def prepare(
    attended: Tensor,
    stream: Tensor,
    exchanged: Tensor,
    codes: list[Tensor],
    scales: list[Tensor],
    splits: list[int],
    post_weights: list[Tensor],
    next_weights: list[Tensor],
    scale: Tensor | None,
    activation: str,
    eps: list[float],
    multiprocessors: int,
    macros: str,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], list[Any]]:
    """Launch what more rows need, and return the results of `launch`, [S, 1, R, N], [1, R, H] twice
    and what is exchanged; and the arguments of the CUDA kernel before those of attention."""
    posts = post_weights or next_weights
    attended, stream = attended.contiguous(), stream.contiguous()
    kernels = partial(small_m.launch, above=ROWS), partial(residual_norm.launch, above=ROWS)
    out, stream2, normed2, stream1, _, _ = composed(
        *kernels, attended, stream, codes, scales, splits, post_weights, next_weights, scale,
        activation, eps,
    )  # fmt: skip
    emptied = torch.empty_like(exchanged)
    operands = [
        attended,
        stream,
        *(tensor for pair in zip(codes, scales, strict=True) for tensor in pair),
        posts[0],
        next_weights[0],
        posts[1],
        next_weights[1] if scale is None else scale,
        next_weights[1],
        exchanged,
        emptied,
        stream1,
        stream2,
        normed2,
        out,
        stream.shape[-2],
        *(packed_shape(*shape) for shape in shapes_of(codes, splits)),
    ]
    return (out, stream2, normed2, emptied), operands


def described(macros: str) -> str:
    """Return the text that stands in the kernel's code for `kernel.cu` with `macros`.

    In small letters: where torch analyses a kernel, a D of a constant is an attribute of a pointer.
    """
    sizes = f"shared={SHARED} launched={32 * LAUNCHED_WARPS}"
    return f"{MARK} {digest()} {macros} {sizes}".lower()


@cache
def digest() -> str:
    """Return a digest of the sources: in Triton's cache, each version has an entry of its own."""
    sources = *sorted(SOURCE.parent.glob("*.cu*")), Path(__file__)
    return hashlib.sha256(b"".join(map(Path.read_bytes, sources))).hexdigest()[:16]


@contextmanager
def compiled_from_cuda() -> Iterator[None]:
    """Let Triton compile `kernel.cu` for `layer_products_kernel`, in this process alone."""
    before = triton.knobs.runtime.add_stages_inspection_hook
    triton.knobs.runtime.add_stages_inspection_hook = replace_stage
    try:
        yield
    finally:
        triton.knobs.runtime.add_stages_inspection_hook = before


def replace_stage(*arguments: Any) -> tuple[str, str] | None:
    """Replace the stages that make and assemble PTX: for this kernel, both compile `kernel.cu`.

    A program gets the PTX, compiled again; the export itself launches what is assembled here.
    Triton calls this with itself and its stages, and from 3.7 on without arguments for what its
    cache is to tell apart.
    """
    if not arguments:
        return digest(), digest()
    stages: dict[str, Callable[..., Any]] = arguments[1]
    make_ptx, assemble = stages["ptx"], stages["cubin"]

    def make_or_compile(module: object, metadata: dict[str, Any]) -> str:
        ptx = str(make_ptx(module, metadata))
        if (found := re.search(rf"{MARK} \w+ (.*)", ptx)) is None:
            return ptx
        metadata["num_warps"], metadata["shared"] = LAUNCHED_WARPS, SHARED
        macros = [f"-D{macro}" for macro in found[1].upper().split()]
        return f"// {MARK} {found[1]}\n{nvcc('-ptx', SOURCE, macros, metadata).decode()}"

    def assemble_or_compile(ptx: str, metadata: dict[str, Any]) -> bytes:
        if MARK not in ptx:
            return bytes(assemble(ptx, metadata))
        with TemporaryDirectory() as directory:
            source = Path(directory) / "kernel.ptx"
            source.write_text(ptx)
            return nvcc("-cubin", source, [], metadata)

    stages["ptx"], stages["cubin"] = make_or_compile, assemble_or_compile
    return None


def nvcc(kind: str, source: Path, macros: list[str], metadata: Mapping[str, Any]) -> bytes:
    """Compile a source to `kind` for the target that Triton compiles for. Raises RuntimeError."""
    from torch.utils.cpp_extension import CUDA_HOME

    compiler = Path(str(CUDA_HOME)) / "bin" / "nvcc"
    with TemporaryDirectory() as directory:
        result = Path(directory) / "result"
        target = f"-arch=sm_{metadata['target'].arch}a"
        # Nothing here is for the host, so any host compiler will do.
        flags = kind, target, "-allow-unsupported-compiler", "-O3", "-std=c++17", *macros
        command = [str(compiler), *flags, "-o", str(result), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise RuntimeError(f"{compiler}: not found: set CUDA_HOME to a CUDA toolkit") from error
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{compiler}: {source.name}: {error.stderr.strip()}") from error
        return result.read_bytes()
