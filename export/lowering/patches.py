"""Everything that an export changes inside PyTorch and ExecuTorch, in one table.

An entry replaces one attribute of a library for as long as a lowering lasts (`applied`). Where the
installed version lacks the name the entry is left out, and one line says so (`missing`): the export
is then slower, or takes more memory. Only what is `required` changes whether it succeeds.
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
"""Returns the new value of an attribute; takes the old one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """One replaced attribute.

    `target` is "module:attribute" or "module:Class.attribute"; a "|" separates the names that an
    attribute has had. `replacement` names a `Replacement` in the same way, within this package; an
    entry without one gets it from whoever applies it. `torch` and `executorch` are the first
    version that the entry is meant for and the first that it is not meant for.
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
        """Whether the installed versions are among those that the entry names."""
        installed = {name: TorchVersion(version(name)) for name in ("torch", "executorch")}
        bounds = {"torch": self.torch, "executorch": self.executorch}
        return all(low <= installed[name] < high for name, (low, high) in bounds.items())

    def find(self) -> tuple[Any, str] | None:
        """The object that has the attribute and the attribute's name; None where it is missing."""
        module, _, names = self.target.partition(":")
        return next(filter(None, (_find(module, name) for name in names.split("|"))), None)


XNNPACK: tuple[Patch, ...] = (
    Patch(
        target="executorch.backends.xnnpack.xnnpack_preprocess:XNNPACKPassManager",
        replacement="xnnpack_replacements:needed_passes",
        why="XNNPACK traces each partition again for each of its 17 passes; one of them has "
        "something to do where all operators are plain ones.",
        saves="37 % of an export of the shipped pair (41 of 109 CPU seconds)",
        upstream="pytorch/executorch#1893",
    ),
    Patch(
        target="executorch.exir.lowered_backend_module:legalize_graph",
        replacement="xnnpack_replacements:sort_in_place",
        why="ExecuTorch copies and compiles the whole graph for each partition that it takes out, "
        "to have its nodes in order.",
        saves="a quarter of the time of a lowering; the order of nodes, and so the bytes of a "
        "program, follow from it",
    ),
    Patch(
        target="executorch.exir.program._program:_get_aten_to_edge_passes",
        replacement="xnnpack_replacements:joined_passes",
        why="ExecuTorch traces a graph seven times on its way to edge operators.",
        saves="a quarter of the time of a lowering",
        upstream="pytorch/executorch#18496 (of decompositions, in the same place)",
    ),
)

COMPILE_METHOD = Patch(
    target="executorch.backends.cuda.cuda_backend:CudaBackend._preprocess_with_weight_collector",
    replacement=None,
    why="The backend compiles methods one after another and reports none of them.",
    saves="with --jobs 4 a third of the time of an export of Gemma-4-31B; each method's stage",
)
TIME_KERNEL = Patch(
    target="torch._inductor.runtime.benchmarking:InductorBenchmarker.benchmark_gpu",
    replacement=None,
    why="Several processes that time kernels on one GPU at the same time choose slow ones.",
    saves="nothing in an export; a program is as fast with --jobs as without",
    upstream="pytorch/pytorch#184905",
    required=True,
)
CUDA: tuple[Patch, ...] = (
    COMPILE_METHOD,
    TIME_KERNEL,
    Patch(
        target="torch._higher_order_ops.triton_kernel_wrap:"
        "identify_mutated_tensors|identify_accessed_tensors",
        replacement="cuda_replacements:analyse_once",
        why="torch compiles a Triton kernel to its IR at each of a model's calls, in each of "
        "several passes, to see which arguments it writes.",
        saves="two minutes of lowering 60 layers",
        upstream="pytorch/pytorch#193227",
    ),
    Patch(
        target="torch._inductor.graph:GraphLowering.run_node",
        replacement="cuda_replacements:store_kernel_inputs",
        why="Inductor computes again, for each call of a Triton kernel, what several calls read.",
        saves="a program's time: 0.2 of 9 ms of a token of Gemma-4-31B",
        required=True,
    ),
    Patch(
        target="executorch.backends.cuda.cuda_backend:_full_zeros_preserving_strides",
        replacement="cuda_replacements:zeros_without_memory",
        why="The backend makes every cache again for each method that it compiles.",
        saves="host memory: 46 of 78 GiB for Gemma-4-31B with eight sequences of 32,768 tokens",
    ),
    Patch(
        target="executorch.backends.cuda.cuda_weight_collector:_write_tensor_storage",
        replacement="cuda_replacements:write_holes",
        why="The backend writes and hashes every cache for each method that it compiles.",
        saves="30 GiB of disk for each method of the same target, and the time to write them",
    ),
    Patch(
        target="torch._inductor.codecache:convert_cubin_to_obj",
        replacement="cuda_replacements:object_per_kernel",
        why="Kernels with the same machine code are linked twice: small models for two sequences "
        "fail with a multiple definition.",
        saves="nothing",
        upstream="pytorch/pytorch#177864 (later versions make one object of all kernels)",
        required=True,
        torch=("2.11", "2.13"),
    ),
)


@contextmanager
def applied(
    patches: Iterable[Patch], replacements: Mapping[Patch, Replacement] | None = None
) -> Iterator[None]:
    """Apply entries while the block runs, as far as the installed versions have their names.

    `replacements` are for entries that name none; such an entry is left out without one.
    """
    replacements = replacements or {}
    with ExitStack() as stack:
        for entry in patches:
            replace = replacements.get(entry) or _named_replacement(entry)
            found = entry.find() if replace and entry.is_meant_for_installed else None
            if replace and found:
                owner, name = found
                stack.enter_context(patch.object(owner, name, replace(getattr(owner, name))))
        yield


def missing(patches: Iterable[Patch]) -> list[str]:
    """Return a line for each entry that is meant for the installed versions and not in them."""
    return [
        f"patch left out: {entry.target} is missing in torch {version('torch')} or executorch "
        f"{version('executorch')}; it saves {entry.saves}"
        for entry in patches
        if entry.is_meant_for_installed and entry.find() is None
    ]


def forget_last_trace() -> None:
    """Release the method that was compiled last.

    torch keeps the nodes of its last trace for a diagnosis of its own, and with them the graph.
    """
    proxies = getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {})
    proxies.clear()


def _named_replacement(entry: Patch) -> Replacement | None:
    if entry.replacement is None:
        return None
    module, _, name = entry.replacement.partition(":")
    found: Replacement = getattr(import_module(f"{__package__}.{module}"), name)
    return found


def _find(module: str, path: str) -> tuple[Any, str] | None:
    """The owner of an attribute and its name."""
    *owners, name = path.split(".")
    try:
        owner = import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        getattr(owner, name)
    except (ImportError, AttributeError):
        return None
    return owner, name
