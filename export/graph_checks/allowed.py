"""The operators a method may hold: those that every backend lowers to code of its own.

The CUDA backend links a program against nothing of torch. What AOTInductor would leave to a kernel
of torch's (sorting, attention, linear algebra, random numbers) fails there, minutes into the
lowering. A test holds these names against Inductor's lowerings; extend them where it agrees.
"""

import torch


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in text.split())


# Halves are taken by slicing: `split`, `chunk` and `unbind` have no kernel in the CUDA backend.
VIEWS = _names(
    "alias clone contiguous detach expand expand_as flatten lift_fresh_copy movedim mT narrow "
    "numpy_T permute reshape select slice squeeze swapaxes t transpose unflatten unsqueeze view "
    "view_as"
)

POINTWISE = _names(
    "__and__ __lshift__ __or__ __rshift__ __xor__ abs add bitwise_and bitwise_left_shift "
    "bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min copy "
    "cos div eq erf exp exp2 fill floor ge gelu gt le log logical_and logical_not logical_or lt "
    "masked_fill maximum minimum mul ne neg pow reciprocal relu remainder round rsqrt rsub sigmoid "
    "sign silu sin softplus sqrt square sub tanh to type_as where"
)

REDUCTIONS = _names("all amax amin any argmax argmin log_softmax mean softmax sum")

FACTORS = {
    "aten::linear": (0, 1),
    "aten::matmul": (0, 1),
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
}
"""Products, and which of their arguments are the factors."""

FACTOR_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of which Inductor makes Triton GEMMs."""

INDEXING = _names("cat embedding gather index index_copy index_put index_select stack")

CREATION = _names(
    "arange full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zeros "
    "zeros_like"
)

DECOMPOSED = _names("_to_copy _unsafe_view floor_divide")
"""What a tower is written in once others of its operators are replaced."""

# Statements about shapes, for which no code is generated.
STATEMENTS = _names("_assert_tensor_metadata sym_size")

ALLOWED = (
    VIEWS | POINTWISE | REDUCTIONS | set(FACTORS) | INDEXING | CREATION | DECOMPOSED | STATEMENTS
)

ROUNDING = frozenset(
    f"quantized_decomposed::{name}"
    for name in (
        "choose_qparams_per_token_asymmetric",
        "quantize_per_token",
        "dequantize_per_token",
        "dequantize_per_channel",
        "dequantize_per_channel_group",
    )
)
"""Of inputs and weights that XNNPACK multiplies in fewer bits: with a linear they are one kernel.
No method for CUDA holds them, as `--cpu-weights` is refused there."""

OWN_NAMESPACE = "eagle_aot::"
"""Operators of this project, which are Triton kernels."""
