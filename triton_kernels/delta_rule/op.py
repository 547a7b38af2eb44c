"""The gated delta rule as operators, which change states in place.

Each is one node of a graph traced by torch.export. Lowered for a GPU it becomes kernels of
`kernel.py` or `blocks.py`; on a CPU it runs the reference. Neither importing this module nor
tracing needs triton.

Terms are what states take in of a token: keys, values, decays and rates, float32 [..., W]. Sizes of
states [places, heads, K, V] are powers of two but for the first two.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.delta_rule.reference import prompt_reference, step_reference

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::delta_rule_step", mutates_args={"state"})
def delta_rule_step(
    state: Tensor,
    sequences: Tensor,
    first: Tensor,
    stored: Tensor,
    older: Tensor,
    takes: Tensor,
    is_chain: Tensor,
    terms: Tensor,
    queries: Tensor,
    paths: Tensor,
    path_takes: Tensor,
) -> Tensor:
    """Bring the states of B texts up to their rows 0, and read them for T rows of each.

    - `state` float32 [places, heads, K, V]; `sequences` int64 [B] are the places of the texts.
    - `first` int64 [B]: positions of rows 0; a state at 0 counts as zeros, one at -1 stays.
    - `stored` [slots, W]: terms by slot. `older` int64 [B * TAIL] are slots of the tokens before
      rows 0; `takes` bool [B, TAIL] marks those that the states lack.
    - `terms` [B * T, W] and `queries` [B * T, keys] of the rows.
    - If `is_chain` bool [], each row continues the one before it. If not, row r continues its
      text's state by those of `paths` int64 [B * T * TAIL], slots, that `path_takes` bool
      [B * T, TAIL] marks.

    Returns float32 [B * T, heads, V]. Sequences must differ.
    """
    from eagle_aot.triton_kernels.delta_rule.kernel import launch_step

    return launch_step(
        state, sequences, first, stored, older, takes, is_chain, terms, queries, paths, path_takes
    )


@_operator("eagle_aot::delta_rule_prompt", mutates_args={"state"})
def delta_rule_prompt(
    state: Tensor, sequence: Tensor, first: Tensor, terms: Tensor, queries: Tensor
) -> Tensor:
    """Take T tokens into the state of one text and read it after each: float32 [T, heads, V].

    `sequence` and `first` int64 [1], `terms` [T, W] and `queries` [T, keys] are as those of
    `delta_rule_step`. T must be a multiple of `blocks.BLOCK`, 32; then the bits of all rows are
    those of the uncut prompt.
    """
    from eagle_aot.triton_kernels.delta_rule.blocks import launch_prompt

    return launch_prompt(state, sequence, first, terms, queries)


delta_rule_step.register_kernel("cpu")(step_reference)
delta_rule_prompt.register_kernel("cpu")(prompt_reference)


@delta_rule_step.register_fake
def _step_shape(state: Tensor, *rest: Tensor) -> Tensor:
    return _shape(state, rest[7])


@delta_rule_prompt.register_fake
def _shape(state: Tensor, *rest: Tensor) -> Tensor:
    queries = rest[-1]
    return queries.new_empty((queries.shape[0], *state.shape[1::2]), dtype=torch.float32)
