"""`--table-quant`: the target's output table in fewer bits.

It chooses tokens, so this makes another model of the target, whose own plain decoding is the text
of the artifact. Embeddings are looked up in the table as it was, which a tied one keeps beside it.
"""

from torch import nn

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export.drafters.quant import memory_of
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.tap_decoder import TapDecoder
from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.quantisers import GROUP, NONE, QUANTISERS


def quantise_table(target: TapTarget, draft: nn.Module, kind: str) -> None:
    """Let `target` multiply with its output table quantised in groups of `GROUP` columns.

    So does a drafter whose output table it is, too. Raises UnsupportedError where the checkpoint
    has quantised it, and where its columns are no whole groups.
    """
    if kind == NONE:
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
