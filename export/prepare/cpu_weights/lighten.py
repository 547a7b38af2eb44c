"""`--cpu-weights`: every linear and every table of a model in fewer bits."""

from torch import Tensor, nn

from eagle_aot.export.prepare.cpu_weights import FLOAT32, INT4
from eagle_aot.export.prepare.cpu_weights.codes import GROUP, Codes, int4_by_groups, int8_by_rows
from eagle_aot.export.prepare.cpu_weights.linear import DynamicLinear
from eagle_aot.export.prepare.cpu_weights.table import Int8Table
from eagle_aot.export.prepare.renew import Model, renewed
from eagle_aot.targets.decoder.tap_decoder import TapDecoder
from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Int4Linear

OUTPUT_TABLE = "lm_head"
VISION = "vision."


class Quantised:
    """Codes of weights. Tables that share memory share their codes."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tables: dict[tuple[int, int], Codes] = {}

    def table(self, weight: Tensor) -> Codes:
        """Of rows [V, H] that outlive this: INT8."""
        key = weight.untyped_storage()._cdata, int(weight.storage_offset())
        if key not in self._tables:
            self._tables[key] = int8_by_rows(weight.detach().float())
        return self._tables[key]

    def linear(self, name: str, module: nn.Linear | Int4Linear) -> DynamicLinear:
        """Of a linear, which is a table where its name says so."""
        if isinstance(module, nn.Linear) and name.endswith(OUTPUT_TABLE):
            return DynamicLinear(self.table(module.weight))
        dense = module if isinstance(module, nn.Linear) else module.dense()
        weight, bias = dense.weight.detach().float(), dense.bias
        return DynamicLinear(self._codes(name, weight), None if bias is None else bias.detach())

    def _codes(self, name: str, weight: Tensor) -> Codes:
        whole = weight.shape[1] % GROUP == 0 and not name.endswith(OUTPUT_TABLE)
        return int4_by_groups(weight) if self._kind == INT4 and whole else int8_by_rows(weight)


def lighten(model: Model, kind: str) -> Model:
    """The model with linears and tables of that kind; as it is for float32.

    Tables stay INT8 by rows for int4, too, and so do linears whose columns are no whole groups.
    Tensors that share memory share codes. What reads pictures keeps its weights.
    """
    if kind == FLOAT32:
        return model
    light, quantised = renewed(model), Quantised(kind)
    for name, module in list(light.named_modules()):
        if name.startswith(VISION):
            continue
        if isinstance(module, TapDecoder) and module.lm_head is None:
            module.lm_head = DynamicLinear(quantised.table(module.embed_weight))
        if isinstance(module, nn.Embedding):
            replace_linear(light, name, Int8Table(quantised.table(module.weight)))
        elif isinstance(module, nn.Linear | Int4Linear):
            replace_linear(light, name, quantised.linear(name, module))
    return light


def eager(model: Model) -> Model:
    """A lightened model to be run as it is: the same values and roundings, weights dense once."""
    dense = renewed(model)
    for name, module in list(dense.named_modules()):
        if isinstance(module, DynamicLinear | Int8Table):
            replace_linear(dense, name, module.eager())
    return dense
