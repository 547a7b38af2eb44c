"""One method compiled by AOTInductor, called through its C interface.

`torch._inductor` has runners for such libraries, but they record events around every call, which a
CUDA graph cannot capture. The C functions are declared in PyTorch's
`torch/csrc/inductor/aoti_runtime/interface.h`.
"""

import ctypes
import functools
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_bool, c_char_p, c_size_t, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.memory import shortage
from eagle_aot.common.process import captured_stderr
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.program.pte import CudaMethod

TORCH_LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch")


class ConstantEntry(ctypes.Structure):
    """A constant's internal name and the tensor bound to it."""

    _fields_ = (("name", c_char_p), ("handle", c_void_p))


class CompiledMethod:
    """A loaded library, bound to weights that the caller owns."""

    def __init__(
        self,
        method: CudaMethod,
        library: memoryview,
        weights: Mapping[str, Tensor],
        device: torch.device,
    ) -> None:
        """`weights` are the constants by fully qualified name, caches included.

        Raises ArtifactError when the library cannot be loaded or needs other weights.
        """
        self._method = method
        self._device = device
        self._library = load_library(method.name, library)
        self._container = c_void_p()
        self._call(
            "CreateWithDevice", byref(self._container), c_size_t(1), str(device).encode(), None
        )
        self._check_arity()
        handles = self._bind(weights)
        delete = self._function("Delete")
        # Not when the process ends: the device may be gone by then.
        weakref.finalize(self, release, delete, self._container, handles).atexit = False

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run on the current stream. Inputs and outputs [...] are in the method's order.

        Raises RuntimeError, as PyTorch does, when memory runs out.
        """
        ordered = [inputs[i] for i in self._method.input_order]
        handles = handle_array(ordered)  # the callee frees them
        count = len(self._method.output_order)
        produced = (c_void_p * count)()
        stream = c_void_p(current_stream(self._device))
        self._call(
            "RunSingleThreaded",
            self._container, handles, c_size_t(len(ordered)),
            produced, c_size_t(count), stream, None,
        )  # fmt: skip
        outputs = tensors_of(produced)
        return tuple(outputs[i] for i in self._method.output_order)

    def _bind(self, weights: Mapping[str, Tensor]) -> "ctypes.Array[c_void_p]":
        """Bind the library's constants. The handles that it keeps must outlive its container."""
        names = self._constant_names()
        unknown = set(names) - set(weights)
        if unknown:
            raise ArtifactError(
                f"{self._method.name}: the library needs {min(unknown)}, which the program "
                "does not list: export again"
            )
        handles = handle_array([weights[fqn] for fqn in names])
        entries = (ConstantEntry * len(names))(
            *(
                ConstantEntry(name, handle)
                for name, handle in zip(names.values(), handles, strict=True)
            )
        )
        self._call(
            "UpdateUserManagedConstantBufferPairs",
            self._container, entries, c_size_t(len(entries)), c_bool(False), c_bool(True),
        )  # fmt: skip
        return handles

    def _constant_names(self) -> dict[str, bytes]:
        """Map every constant's fully qualified name to the library's own name."""
        names = {}
        for index in range(self._count("Constants")):
            internal, qualified = c_char_p(), c_char_p()
            self._call("GetConstantName", self._container, c_size_t(index), byref(internal))
            self._call("GetConstantOriginalFQN", self._container, c_size_t(index), byref(qualified))
            assert internal.value is not None and qualified.value is not None
            names[qualified.value.decode()] = internal.value
        return names

    def _check_arity(self) -> None:
        for kind, expected in (
            ("Inputs", len(self._method.input_order)),
            ("Outputs", len(self._method.output_order)),
        ):
            if (count := self._count(kind)) != expected:
                raise ArtifactError(
                    f"{self._method.name}: the library has {count} {kind.lower()}, the program "
                    f"{expected}: export again"
                )

    def _count(self, kind: str) -> int:
        count = c_size_t()
        self._call(f"GetNum{kind}", self._container, byref(count))
        return count.value

    def _function(self, name: str) -> "ctypes._NamedFuncPointer":
        symbol = f"AOTInductorModelContainer{name}"
        try:
            return getattr(self._library, symbol)
        except AttributeError as error:
            raise ArtifactError(
                f"{self._method.name}: the library lacks {symbol}: export again"
            ) from error

    def _call(self, name: str, *arguments: object) -> None:
        function = self._function(name)
        with captured_stderr() as printed:
            if function(*arguments) != 0:
                raise self._failure(name, printed())

    def _failure(self, name: str, printed: str) -> Exception:
        """Make an exception of what the library printed, which is all it says about a failure."""
        if shortage(out_of_memory := RuntimeError(printed)):
            return out_of_memory
        reason = f": {one_line(printed)}" if printed else ""
        return ArtifactError(f"{self._method.name}: {name} failed in the compiled library{reason}")


def release(
    delete: Callable[[c_void_p], int], container: c_void_p, handles: "ctypes.Array[c_void_p]"
) -> None:
    """Delete a container, then release the weights that were bound to it."""
    delete(container)
    tensors_of(handles)


def current_stream(device: torch.device) -> int:
    """Return the stream that PyTorch launches on, 0 on a device without streams."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def load_library(name: str, library: memoryview) -> ctypes.CDLL:
    """Load a shared object from memory. Raises ArtifactError when the linker refuses."""
    promote_torch_symbols()
    with tempfile.TemporaryDirectory(prefix="eagle-aot-") as directory:
        path = Path(directory) / f"{name}.so"
        path.write_bytes(library)
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise ArtifactError(f"{name}: its library cannot be loaded: {error}") from error


@functools.cache
def promote_torch_symbols() -> None:
    """Let libraries that were linked without PyTorch find its functions in this process."""
    for library in TORCH_LIBRARIES:
        path = Path(torch.__file__).parent / "lib" / f"lib{library}.so"
        if path.is_file():  # a build for CPUs has fewer
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


# A handle is a pointer to a heap-allocated tensor. PyTorch's bindings pass it as a capsule.
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (c_void_p, c_char_p, c_void_p)


def handle_array(tensors: Sequence[Tensor]) -> "ctypes.Array[c_void_p]":
    """Return new handles of `tensors` [...]; each keeps its tensor alive until it is freed."""
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    return (c_void_p * len(capsules))(*(_capsule_pointer(c, None) for c in capsules))


def tensors_of(handles: "ctypes.Array[c_void_p]") -> list[Tensor]:
    """Return the tensors that `handles` point to, and free the handles."""
    capsules = [_new_capsule(handle, None, None) for handle in handles]
    return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)
