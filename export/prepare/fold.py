"""INT4 linears as dense ones, for backends without an INT4 kernel."""

from torch import nn

from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.packed_linear import PackedModule


def fold_int4(model: nn.Module) -> None:
    """Replace every INT4 linear by the dense one it stands for, in place.

    XNNPACK has no weight-only INT4 kernel, and dequantising in every step would cost more than the
    product itself.
    """
    for name, module in list(model.named_modules()):
        assert not isinstance(module, PackedModule), f"{name} is packed for a GPU"
        if isinstance(module, Int4Linear):
            replace_linear(model, name, module.dense())
