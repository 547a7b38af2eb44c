"""The C interface, against a small library written for it: no GPU, the real calls.

The library's one method takes (a, b) and returns (b, a): it hands the handles it was given back in
the other order, so nothing is copied and nothing is freed twice.
"""

import gc
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.memory import shortage
from eagle_aot.runtime_runner.program.compiled_method import CompiledMethod
from eagle_aot.runtime_runner.program.pte import CudaMethod

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a library with")

SOURCE = """
#include <stddef.h>
#include <stdio.h>
typedef void *handle;
#define API(name) int AOTInductorModelContainer##name
struct pair { const char *name; handle tensor; };
static const char *bound; static size_t num_bound;
#ifndef INPUTS
#define INPUTS 2
#endif
#ifndef SAYS
#define SAYS ""
#endif
#ifndef STATUS
#define STATUS 0
#endif
API(CreateWithDevice)(handle *c, size_t n, const char *device, const char *dir) {
  *c = (handle)&bound; return device[0] != 'c';
}
API(GetNumInputs)(handle c, size_t *n) { *n = INPUTS; return 0; }
API(GetNumOutputs)(handle c, size_t *n) { *n = 2; return 0; }
API(GetNumConstants)(handle c, size_t *n) { *n = 1; return 0; }
API(GetConstantName)(handle c, size_t i, const char **s) { *s = "target_w"; return 0; }
API(GetConstantOriginalFQN)(handle c, size_t i, const char **s) { *s = "target.w"; return 0; }
API(UpdateUserManagedConstantBufferPairs)(
    handle c, const struct pair *p, size_t n, _Bool inactive, _Bool full) {
  bound = p[0].name; num_bound = n; return !(n == 1 && bound[6] == '_' && full && !inactive);
}
#ifndef NO_DELETE
API(Delete)(handle c) { return !(c == (handle)&bound && num_bound); }
#endif
#ifndef NO_RUN
API(RunSingleThreaded)(
    handle c, handle *in, size_t nin, handle *out, size_t nout, handle stream, handle proxy) {
  fputs(SAYS, stderr);
  if (STATUS || nin != 2 || nout != 2 || stream || proxy || num_bound != 1) return 1;
  out[0] = in[1]; out[1] = in[0]; return 0;
}
#endif
"""

WEIGHTS = {"target.w": torch.ones(3), "target.other": torch.zeros(1)}


def build(directory: Path, *flags: str) -> memoryview:
    source, library = directory / "method.c", directory / "method.so"
    source.write_text(SOURCE)
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", *flags, "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return memoryview(library.read_bytes())


def method(
    input_order: tuple[int, ...] = (0, 1), output_order: tuple[int, ...] = (0, 1)
) -> CudaMethod:
    return CudaMethod("verify", "key", (), input_order, output_order)


def load(directory: Path, *flags: str) -> CompiledMethod:
    return CompiledMethod(method(), build(directory, *flags), WEIGHTS, torch.device("cpu"))


def test_outputs_are_the_tensors_themselves(tmp_path: Path) -> None:
    a, b = torch.arange(4), torch.randn(2, 3)
    first, second = load(tmp_path).run([a, b])
    assert (first.data_ptr(), second.data_ptr()) == (b.data_ptr(), a.data_ptr())
    assert torch.equal(first, b) and torch.equal(second, a)


def test_weights_are_released_with_the_method(tmp_path: Path) -> None:
    weight = torch.ones(3)
    before = weight._use_count()  # type: ignore[attr-defined]
    compiled = CompiledMethod(method(), build(tmp_path), {"target.w": weight}, torch.device("cpu"))
    assert weight._use_count() == before + 1  # type: ignore[attr-defined]
    del compiled
    gc.collect()
    assert weight._use_count() == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("input_order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("output_order", [(0, 1), (1, 0)])
def test_arguments_follow_the_plan(
    tmp_path: Path, input_order: tuple[int, ...], output_order: tuple[int, ...]
) -> None:
    inputs: list[Tensor] = [torch.tensor([1]), torch.tensor([2])]
    plan = method(input_order, output_order)
    compiled = CompiledMethod(plan, build(tmp_path), WEIGHTS, torch.device("cpu"))
    delegate_outputs = [inputs[i] for i in input_order][::-1]
    expected = [delegate_outputs[i] for i in output_order]
    assert [int(x) for x in compiled.run(inputs)] == [int(x) for x in expected]


def test_tensors_outlive_many_runs(tmp_path: Path) -> None:
    compiled = load(tmp_path)
    kept = [compiled.run([torch.full((64,), i), torch.full((8,), -i)]) for i in range(200)]
    for i, (first, second) in enumerate(kept):
        assert first.eq(-i).all() and second.eq(i).all()


@pytest.mark.parametrize(("flags", "message"), [
    (["-DINPUTS=3"], "verify: the library has 3 inputs, the program 2"),
    (["-DNO_RUN"], "lacks AOTInductorModelContainerRunSingleThreaded"),
    (["-DSTATUS=1"], "RunSingleThreaded failed"),
    (["-DNO_DELETE"], "lacks AOTInductorModelContainerDelete"),
])  # fmt: skip
def test_a_library_that_does_not_fit_is_refused(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        load(tmp_path, *flags).run([torch.ones(1), torch.ones(1)])


def says(text: str) -> str:
    """A compiler's flag; text without quotes."""
    return f'-DSAYS="{text}\\n"'


def test_out_of_memory_is_distinguished_from_other_failures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library prints why and returns a code; a user is to read one line, not two."""
    text = "Exception in aoti_torch: CUDA out of memory. Tried to allocate 20.00 MiB."
    compiled = load(tmp_path, "-DSTATUS=1", says(text))
    with pytest.raises(RuntimeError) as found:
        compiled.run([torch.ones(1), torch.ones(1)])
    line = shortage(found.value)
    assert line and line.startswith("out of memory on the GPU, 20.00 MiB more were needed: ")
    assert capfd.readouterr().err == ""


def test_unknown_failure_of_a_compiled_method_is_quoted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiled = load(tmp_path, "-DSTATUS=1", says("no kernel image"))
    with pytest.raises(ArtifactError, match=r"verify: Run.* failed in .*: no kernel image$"):
        compiled.run([torch.ones(1), torch.ones(1)])
    assert capfd.readouterr().err == ""


def test_stderr_of_a_successful_method_is_passed_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load(tmp_path, says("a warning")).run([torch.ones(1), torch.ones(1)])
    assert capfd.readouterr().err == "a warning\n"


def test_failure_of_a_method_is_quoted_even_without_a_stderr(tmp_path: Path) -> None:
    """A process may have been started without a standard error."""
    compiled = load(tmp_path, "-DSTATUS=1", says("unheard"))
    before = os.dup(2)
    os.close(2)
    try:
        with pytest.raises(ArtifactError, match="unheard"):
            compiled.run([torch.ones(1), torch.ones(1)])
    finally:
        os.dup2(before, 2)
        os.close(before)


def test_a_missing_function_of_pytorch_is_refused(tmp_path: Path) -> None:
    library = build(tmp_path, "-Wno-implicit-function-declaration", "-DSTATUS=no_such_function()")
    with pytest.raises(ArtifactError, match=r"verify: its library cannot be loaded.*no_such_fun"):
        CompiledMethod(method(), library, WEIGHTS, torch.device("cpu"))


def test_bytes_that_are_no_library_are_refused() -> None:
    with pytest.raises(ArtifactError, match="verify: its library cannot be loaded"):
        CompiledMethod(method(), memoryview(b"no library"), WEIGHTS, torch.device("cpu"))


def test_a_weight_that_the_program_does_not_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"needs target\.w, which the program does not list"):
        CompiledMethod(method(), build(tmp_path), {}, torch.device("cpu"))
