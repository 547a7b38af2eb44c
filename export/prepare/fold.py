"""INT4 linears as dense ones, for backends without an INT4 kernel."""

from eagle_aot.export.prepare.renew import Model, exchange, renewed
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.packed_linear import PackedModule


def fold_int4(model: Model) -> Model:
    """The model with the dense linear that it stands for in place of every INT4 one.

    XNNPACK has no weight-only INT4 kernel, and dequantising in every step would cost more than the
    product itself.
    """
    folded = renewed(model)
    for name, module in list(folded.named_modules()):
        assert not isinstance(module, PackedModule), f"{name} is packed for a GPU"
        if isinstance(module, Int4Linear):
            exchange(folded, module, module.dense())
    return folded
