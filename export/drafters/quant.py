"""`--draft-quant`: a drafter's linears in fewer bits.

A drafter proposes and never decides, so this can change how many drafts are accepted and no token
of the text.
"""

from typing import cast

from torch import Tensor, nn

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Biased, Int4Linear
from eagle_aot.targets.int4.quantisers import GROUP, NONE, QUANTISERS, Quantiser


def quantise_draft(draft: nn.Module, target: TapTarget, kind: str) -> None:
    """Quantise every linear of the head in place, in groups of `GROUP` columns, one at a time.

    A table that is the target's stays that, and a linear whose columns are no whole groups stays
    dense, as do embedding, norms and biases. Raises UnsupportedError where all linears would.
    """
    if kind == NONE:
        return
    shared = {memory_of(table) for table in cast(nn.Module, target).parameters()}
    linears = [(name, m) for name, m in draft.named_modules() if isinstance(m, nn.Linear)]
    fitting = [
        name
        for name, linear in linears
        if linear.in_features % GROUP == 0 and memory_of(linear.weight) not in shared
    ]
    del linears  # which would keep alive what is replaced
    if not fitting:
        raise UnsupportedError(
            f"--draft-quant {kind}: no linear of the head has a multiple of {GROUP} columns"
        )
    for name in fitting:
        linear = draft.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        replace_linear(draft, name, _quantised(linear, QUANTISERS[kind]))


def _quantised(linear: nn.Linear, quantiser: Quantiser) -> nn.Module:
    dtype = linear.weight.dtype
    product = Int4Linear(quantiser(linear.weight.detach(), dtype), dtype)
    return product if linear.bias is None else Biased(product, linear.bias.detach())


def memory_of(tensor: Tensor) -> int:
    """The same for tensors in one memory, with values or without."""
    return tensor.untyped_storage()._cdata
