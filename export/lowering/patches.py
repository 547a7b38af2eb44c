"""Everything that an export changes inside PyTorch and ExecuTorch, in one table.

An entry replaces one attribute of a library while a backend lowers (`applied`). If the installed
version lacks the attribute, or what the replacement needs of the library, the entry is left out and
the export prints one line about it (`missing`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

from torch.fx.experimental import proxy_tensor
from torch.torch_version import TorchVersion

Replacement = Callable[[Any], Any]
"""Takes the old value of an attribute and returns the new one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """One replaced attribute of a library.

    `target` is "module:attribute" or "module:Class.attribute"; a "|" separates the names that the
    attribute has in different versions. `replacement` names a `Replacement` of this package in the
    same way; an entry without one gets it from the caller of `applied`. `torch` and `executorch`
    are the first version that the entry is meant for, and the first that it is not meant for.
    Without an entry that is `required`, some exports fail or their programs are slower; without
    others, an export takes more time or memory.
    """

    target: str
    replacement: str | None
    why: str
    saves: str
    upstream: str = "none known"
    required: bool = False
    torch: tuple[str, str] = ("2.11", "2.14")
    executorch: tuple[str, str] = ("1.5", "1.6")

    @property
    def is_meant_for_installed(self) -> bool:
        """Whether the entry is meant for the installed versions."""
        bounds = {"torch": self.torch, "executorch": self.executorch}
        return all(
            first <= TorchVersion(version(library)) < end
            for library, (first, end) in bounds.items()
        )

    def locate(self) -> tuple[Any, str] | None:
        """Return the object that has the attribute, and the attribute's name; None if missing."""
        module, _, paths = self.target.partition(":")
        for path in paths.split("|"):
            *classes, name = path.split(".")
            try:
                owner = import_module(module)
                for each in classes:
                    owner = getattr(owner, each)
                getattr(owner, name)
            except (ImportError, AttributeError):
                continue
            return owner, name
        return None

    def load_replacement(self) -> Replacement | None:
        """Return the named replacement; None without one or if the library lacks what it needs."""
        if self.replacement is None:
            return None
        module, _, name = self.replacement.partition(":")
        try:
            replacement: Replacement = getattr(import_module(f"{__package__}.{module}"), name)
        except ImportError:
            return None
        return replacement


LOOPS = tuple(
    Patch(
        target=f"{library}.pass_base:_unstack_pytree",
        replacement="xnnpack_replacements:first_of_each",
        why="To trace the body of a loop over rows again, a pass takes all rows apart, which fixes "
        "their number.",
        saves="nothing; targets with experts have such loops",
        required=True,
    )
    for library in ("torch._export", "executorch.exir")
)
XNNPACK: tuple[Patch, ...] = (
    *LOOPS,
    Patch(
        target="executorch.backends.xnnpack.xnnpack_preprocess:XNNPACKPassManager",
        replacement="xnnpack_replacements:needed_passes",
        why="XNNPACK traces each partition again for each of its 17 passes. Only one of them has "
        "something to do where all operators are plain ones.",
        saves="38 % of an export's time (41 of 109 CPU seconds for the shipped pair)",
        upstream="pytorch/executorch#1893",
    ),
    Patch(
        target="executorch.exir.lowered_backend_module:legalize_graph",
        replacement="xnnpack_replacements:sort_in_place",
        why="ExecuTorch sorts the whole graph for each partition that it takes out, by copying and "
        "compiling it. The order of nodes, and so the program's bytes, differ without this entry.",
        saves="14 % of an export's time (11 of 79 CPU seconds for the shipped pair)",
    ),
    Patch(
        target="executorch.exir.program._program:_get_aten_to_edge_passes",
        replacement="xnnpack_replacements:joined_passes",
        why="ExecuTorch traces a graph seven times to make its operators edge operators.",
        saves="10 % of an export's time (6.5 of 66 CPU seconds for the shipped pair)",
        upstream="pytorch/executorch#18496 (decompositions, at the same place)",
    ),
)

COMPILE_METHOD = Patch(
    target="executorch.backends.cuda.cuda_backend:CudaBackend._preprocess_with_weight_collector",
    replacement=None,
    why="The backend compiles methods one after another, and reports none of them.",
    saves="a third of an export's time with --jobs (189 to 106 s for the shipped pair on an H100)",
)
TIME_KERNEL = Patch(
    target="torch._inductor.runtime.benchmarking:InductorBenchmarker.benchmark_gpu",
    replacement=None,
    why="Processes that time kernels on one GPU at the same time may choose slow ones.",
    saves="nothing of an export; its program is as fast with --jobs as without",
    upstream="pytorch/pytorch#184905 (a hook for this, in torch 2.13)",
    required=True,
)
CUDA: tuple[Patch, ...] = (
    COMPILE_METHOD,
    TIME_KERNEL,
    Patch(
        target="torch._higher_order_ops.triton_kernel_wrap:"
        "identify_mutated_tensors|identify_accessed_tensors",
        replacement="cuda_replacements:analyse_once",
        why="To see what a Triton kernel writes, torch compiles it to IR at each of a model's "
        "calls, in each of several passes.",
        saves="two of 15 minutes (Gemma-4-31B on an H100)",
        upstream="pytorch/pytorch#193227",
    ),
    Patch(
        target="torch._inductor.async_compile:AsyncCompile.triton",
        replacement="cuda_replacements:compile_cuda_here",
        why="Torch compiles Triton kernels in processes of its own, where nothing puts CUDA C++ in "
        "place of one.",
        saves="nothing",
        required=True,
    ),
    Patch(
        target="torch._inductor.ir:ExternKernel.require_strides",
        replacement="cuda_replacements:put_in_memory",
        why="What is not in memory when a Triton kernel takes it is computed again for each such "
        "kernel: angles of positions, for instance, for every layer.",
        saves="one or two launches of a layer (Gemma-4-31B)",
        required=True,
    ),
    Patch(
        target="executorch.backends.cuda.cuda_backend:_full_zeros_preserving_strides",
        replacement="cuda_replacements:zeros_without_memory",
        why="The backend makes every cache again for each method that it compiles.",
        saves="46 of 78 GiB of host memory (Gemma-4-31B, eight sequences of 32,768 tokens)",
    ),
    Patch(
        target="executorch.backends.cuda.cuda_weight_collector:_write_tensor_storage",
        replacement="cuda_replacements:write_holes",
        why="The backend writes and hashes every cache for each method that it compiles.",
        saves="30 GiB of disk for each of the target's methods (as above), and writing them",
    ),
    Patch(
        target="executorch.exir.program._program:"
        "convert_constant_dim_order_pass.convert_constant_dim_order_pass",
        replacement="cuda_replacements:keep_strides",
        why="ExecuTorch makes constants contiguous, and fails at buffers that are not stored. A "
        "cache has the strides that its kernels read.",
        saves="nothing",
        required=True,
    ),
    Patch(
        target="torch._inductor.codecache:convert_cubin_to_obj",
        replacement="cuda_replacements:object_per_kernel",
        why="Two kernels with the same machine code are linked twice, which fails: small models "
        "for two sequences have such kernels.",
        saves="nothing",
        upstream="pytorch/pytorch#177864 (one object for all kernels, in torch 2.13)",
        required=True,
        torch=("2.11", "2.13"),
    ),
)


@contextmanager
def applied(
    patches: Iterable[Patch], replacements: Mapping[Patch, Replacement] | None = None
) -> Iterator[None]:
    """Apply entries of the table while the block runs, as far as the installed versions allow.

    `replacements` are for entries that name none; such an entry is left out without one.
    """
    with ExitStack() as stack:
        for entry in patches:
            replace = (replacements or {}).get(entry) or entry.load_replacement()
            attribute = entry.locate()
            if replace and attribute and entry.is_meant_for_installed:
                owner, name = attribute
                stack.enter_context(patch.object(owner, name, replace(getattr(owner, name))))
        yield


def missing(patches: Iterable[Patch]) -> list[str]:
    """Return one line for each entry that the installed versions, which it is meant for, lack."""
    return [
        f"patch left out: {entry.target} or what replaces it is missing in torch "
        f"{version('torch')} or executorch {version('executorch')}; it saves {entry.saves}"
        for entry in patches
        if entry.is_meant_for_installed
        and not (entry.locate() and (entry.load_replacement() or entry.replacement is None))
    ]


def forget_last_trace() -> None:
    """Release the method that was compiled last.

    For a diagnosis, torch keeps the nodes of its last trace, and with them the graph.
    """
    getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {}).clear()
