"""Operators that write their arguments, as AOTInductor can take them."""

from torch.export import ExportedProgram


def written_in_place(program: ExportedProgram) -> ExportedProgram:
    """Let each operator that writes its arguments stand in the graph by itself; changes `program`.

    Lowering wraps it, to a function that returns what it would have written. AOTInductor takes an
    operator apart into its Triton kernels, but none that is wrapped: it would call it, and the
    program has no such operator. Each value that is written has no later reader but through the
    write, so that nothing is changed behind anybody's back.
    """
    from torch.export._remove_auto_functionalized_pass import (
        unsafe_remove_auto_functionalized_pass,
    )

    return unsafe_remove_auto_functionalized_pass(program)
