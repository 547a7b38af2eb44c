"""What a gated delta net computes before its rule and after it, each as one operator.

Each is one node of a graph traced by torch.export. Lowered for a GPU it becomes a kernel of
`kernel.py`; on a CPU it runs the reference. Neither importing this module nor tracing needs triton.

A net's products are the parts [S, 1, R, N] that add up, in ascending order, to queries, keys and
values (together the channels of its convolution), gates, and what rates and decays are made of, a
number for each head.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.delta_net.reference import inputs_reference, output_reference

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::delta_net_inputs", mutates_args={"inputs", "terms"})
def delta_net_inputs(
    parts: Tensor,
    taps_weight: Tensor,
    dt_bias: Tensor,
    a_log: Tensor,
    inputs: Tensor,
    terms: Tensor,
    row_slots: Tensor,
    tap_slots: Tensor,
    exist: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    key_dim: int,
) -> tuple[Tensor, Tensor]:
    """Store R rows of B texts, and return their queries and what states take in of them.

    - `parts` as above, rounded to the dtype of the weights when they are added up;
    - `taps_weight` [channels, 1, taps]: the convolution's, the row's own last; `dt_bias` and
      `a_log` [heads]: what decays depend on;
    - `inputs` float32 [slots, channels] and `terms` float32 [slots, W]: buffers by slot. First
      entries at `sources` int64 [B, M] are copied to `targets` int64 [B, M], if they are given.
      Then each row is stored at `row_slots` int64 [R], R / B rows of each text in turn;
    - `tap_slots` int64 [R * taps], and `exist` bool [R, taps, 1]: what the convolution adds up for
      each row, the oldest first. They are rows of its text.

    A row's slot may be a source, but not a target; a target may not be the source of another entry.
    Texts share no slot except for padding, which is never read. Returns float32 [R, keys], unit
    vectors of `key_dim` times its inverse root, and float32 [R, W]: keys, values, decays and rates.
    """
    from eagle_aot.triton_kernels.delta_net.kernel import launch_inputs

    buffers, moves = (inputs, terms), (sources, targets)
    weights = taps_weight, dt_bias, a_log
    return launch_inputs(parts, weights, buffers, row_slots, (tap_slots, exist), moves, key_dim)


@_operator("eagle_aot::delta_net_output", mutates_args=())
def delta_net_output(read: Tensor, parts: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise what rows `read`, float32 [R, heads, value_dim], and multiply it by their gates.

    Each head is RMS-normalised with `weight` [value_dim]; `parts` are as above. Returns
    [1, R, heads * value_dim] in the weight's dtype.
    """
    from eagle_aot.triton_kernels.delta_net.kernel import launch_output

    return launch_output(read, parts, weight, eps)


delta_net_inputs.register_kernel("cpu")(inputs_reference)
delta_net_output.register_kernel("cpu")(output_reference)


@delta_net_inputs.register_fake
def _inputs_shapes(parts: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    heads, (inputs, terms) = rest[2].shape[0], rest[3:5]
    keys = inputs.shape[1] - (terms.shape[1] - 2 * heads)
    new = parts.new_empty(parts.shape[2], terms.shape[1], dtype=torch.float32)
    return new.new_empty(parts.shape[2], keys), new


@delta_net_output.register_fake
def _output_shape(read: Tensor, parts: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight.new_empty(1, read.shape[0], read.shape[1] * read.shape[2])
