"""`--draft-quant` and `--table-quant`: quantise the drafter's linears or the target's output table.

A drafter only proposes, so its format changes how many drafts are accepted but no token of the
text: it may multiply with a rounded copy of the target's output table. The target's own table
chooses tokens: a quantised one is another model, and the text of the artifact is that model's.
"""

from typing import cast

from torch import Tensor, nn

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.tap_decoder import TapDecoder
from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Biased, Int4Linear
from eagle_aot.targets.int4.quantisers import GROUP, NONE, QUANTISERS, QUANTS, Quantiser


def quantise_draft(
    draft: nn.Module, target: TapTarget, kind: str, *, own_table: bool = False
) -> None:
    """Quantise every linear of the head in place, in groups of `GROUP` columns, one at a time.

    An output table that is the target's stays so, or with `own_table` the head gets a quantised
    copy of it. Linears whose columns are not whole groups, embeddings, norms and biases stay dense.
    Raises UnsupportedError if no linear can be quantised.
    """
    if kind == NONE:
        return
    tables = () if own_table else cast(nn.Module, target).parameters()
    shared = {memory_of(table) for table in tables}
    linears = [(name, m) for name, m in draft.named_modules() if isinstance(m, nn.Linear)]
    fitting = [
        name
        for name, linear in linears
        if linear.in_features % GROUP == 0 and memory_of(linear.weight) not in shared
    ]
    del linears  # it would keep replaced modules alive
    if not fitting:
        raise UnsupportedError(
            f"--draft-quant {kind}: no linear of the head has a multiple of {GROUP} columns"
        )
    for name in fitting:
        linear = draft.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        replace_linear(draft, name, _quantised(linear, QUANTISERS[kind]))


def has_smaller_table(draft_quant: str, table_quant: str) -> bool:
    """Return whether the head's format has fewer bits than the one of the target's output table, so
    that a copy of the table in it would be read faster."""
    table = table_quant if table_quant in QUANTS else NONE
    return QUANTS.index(draft_quant) > QUANTS.index(table)


def _quantised(linear: nn.Linear, quantiser: Quantiser) -> nn.Module:
    dtype = linear.weight.dtype
    product = Int4Linear(quantiser(linear.weight.detach(), dtype), dtype)
    return product if linear.bias is None else Biased(product, linear.bias.detach())


def memory_of(tensor: Tensor) -> int:
    """Return an identity of the memory of a tensor of any shape and dtype, fake ones included.

    Tensors `[...]` that share memory have the same one.
    """
    return tensor.untyped_storage()._cdata


def quantise_table(target: TapTarget, draft: nn.Module, kind: str) -> None:
    """Quantise the target's output table in place, in groups of `GROUP` columns.

    A drafter that shares the table uses the quantised one, too; embeddings are looked up in the
    dense one, which a tied table remains. Raises UnsupportedError if the checkpoint has quantised
    it already, and if its columns are not whole groups.
    """
    if kind not in QUANTISERS:
        return
    assert isinstance(target, TapDecoder)
    if isinstance(target.lm_head, Int4Linear):
        raise UnsupportedError(
            f"--table-quant {kind}: the checkpoint's output table is INT4 already: leave it out"
        )
    dense = target.lm_head_weight.detach()
    if dense.shape[1] % GROUP:
        raise UnsupportedError(
            f"--table-quant {kind}: the output table has {dense.shape[1]} columns, "
            f"no multiple of {GROUP}: leave it out"
        )
    sharing = [
        name
        for name, linear in draft.named_modules()
        if isinstance(linear, nn.Linear) and memory_of(linear.weight) == memory_of(dense)
    ]
    table = Int4Linear(QUANTISERS[kind](dense, dense.dtype), dense.dtype)
    target.lm_head = table
    for name in sharing:
        replace_linear(draft, name, table)
