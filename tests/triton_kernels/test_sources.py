"""Kernels as torch writes them into a program: their source, and that of all they call, in one."""

import ast
import builtins
import dis
import importlib.util
from importlib import import_module
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

from torch._inductor.codegen.wrapper import (  # noqa: E402
    user_defined_triton_kernel_transitive_closure_source_code as whole_source,
)

KERNELS = {
    "dense_gemm.kernel": "dense_small_m_kernel",
    "screened_table.kernel": "screen_kernel",
    "int4_gemm.small_m": "int4_small_m_kernel",
    "int4_gemm.large_m": "int4_large_m_kernel",
    "sdpa_splitk.kernel": "sdpa_splitk_kernel",
    "sdpa_splitk.combine": "sdpa_combine_kernel",
    "sdpa_prompt.kernel": "sdpa_prompt_kernel",
    "norm_rope_store.kernel": "norm_rope_store_kernel",
    "choose_experts.kernel": "choose_experts_kernel",
    "int4_experts.few_rows": "int4_experts_few_kernel",
    "int4_experts.many_rows": "int4_experts_many_kernel",
    "int4_experts.order": "experts_order_kernel",
    "residual_norm.kernel": "residual_norm_kernel",
    "copy_rows.kernel": "copy_rows_kernel",
}
"""Of the graphs that are lowered, by the module each is in."""


def quoted(source: str) -> str:
    """What Python reads of a source that torch puts between quotes as it is."""
    return str(ast.literal_eval("'''\n" + source + "\n'''"))


@pytest.mark.parametrize(("module", "name"), KERNELS.items())
def test_the_written_source_of_a_kernel_is_complete(module: str, name: str, tmp_path: Path) -> None:
    """Torch takes functions and constants, and no other thing that a module may hold."""
    kernel = getattr(import_module(f"eagle_aot.triton_kernels.{module}"), name)
    path = tmp_path / "written.py"
    head = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
    path.write_text(head + quoted(whole_source(kernel)))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    functions = [f for f in vars(written).values() if isinstance(f, triton.JITFunction)]
    assert written.__dict__[name] in functions
    used = {
        step.argval
        for function in functions
        for step in dis.Bytecode(function.fn)
        if step.opname == "LOAD_GLOBAL"
    }
    assert used - vars(written).keys() - vars(builtins).keys() == set()
