"""`--cpu-weights`: every linear and every table of a pair in fewer bits, for XNNPACK."""

from torch import Tensor, nn

from eagle_aot.export.prepare.modules import Model, clone_modules
from eagle_aot.export.prepare.quantized_modules import (
    GROUP,
    DynamicLinear,
    Int8Table,
    QuantizedExpertLinears,
    QuantizedWeight,
    int4_by_groups,
    int8_by_rows,
)
from eagle_aot.targets.decoder.experts import ExpertLinears, Int4ExpertLinears, RouterLinear
from eagle_aot.targets.decoder.tap_decoder import TapDecoder
from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Int4Linear

FLOAT32, INT8, INT4 = "float32", "int8", "int4"
"""The values of `--cpu-weights`."""
OUTPUT_TABLE = "lm_head"
VISION = "vision."


def quantize_for_cpu(model: Model, kind: str) -> Model:
    """Return a copy of the model with linears and tables of `kind`; `model` itself for float32.

    With int4, tables are INT8 by rows, and so are linears whose columns are not whole groups.
    Tensors that share memory share codes. The image encoder and routers keep their weights, and
    inputs of experts stay float32.
    """
    if kind == FLOAT32:
        return model
    quantized, weights = clone_modules(model), WeightQuantizer(kind)
    for name, module in list(quantized.named_modules()):
        if name.startswith(VISION):
            continue
        if isinstance(module, TapDecoder) and module.lm_head is None:
            module.lm_head = DynamicLinear(weights.table(module.embed_weight))
        if isinstance(module, nn.Embedding):
            replace_linear(quantized, name, Int8Table(weights.table(module.weight)))
        elif isinstance(module, RouterLinear):
            continue
        elif isinstance(module, nn.Linear | Int4Linear):
            replace_linear(quantized, name, weights.linear(name, module))
        elif isinstance(module, ExpertLinears | Int4ExpertLinears):
            replace_linear(quantized, name, weights.experts(module))
    return quantized


def dequantize_for_eager(model: Model) -> Model:
    """Return a copy of a quantised model that runs faster eagerly: the same values and roundings,
    with weights made dense once."""
    dense = clone_modules(model)
    for name, module in list(dense.named_modules()):
        if isinstance(module, DynamicLinear | Int8Table | QuantizedExpertLinears):
            replace_linear(dense, name, module.eager())
    return dense


class WeightQuantizer:
    """Quantises a model's weights. Tables that share memory share their codes."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tables: dict[tuple[int, int], QuantizedWeight] = {}

    def table(self, weight: Tensor) -> QuantizedWeight:
        """Quantise a table [V, H] to INT8; it must outlive this object."""
        key = weight.untyped_storage()._cdata, int(weight.storage_offset())
        if key not in self._tables:
            self._tables[key] = int8_by_rows(weight.detach().float())
        return self._tables[key]

    def linear(self, name: str, module: nn.Linear | Int4Linear) -> DynamicLinear:
        """Quantise a linear; one that is called `OUTPUT_TABLE` is a table."""
        if isinstance(module, nn.Linear) and name.endswith(OUTPUT_TABLE):
            return DynamicLinear(self.table(module.weight))
        dense = module if isinstance(module, nn.Linear) else module.dense()
        weight, bias = dense.weight.detach().float(), dense.bias
        whole = weight.shape[1] % GROUP == 0 and not name.endswith(OUTPUT_TABLE)
        as_int4 = self._kind == INT4 and whole
        quantized = int4_by_groups(weight) if as_int4 else int8_by_rows(weight)
        return DynamicLinear(quantized, None if bias is None else bias.detach())

    def experts(self, linears: ExpertLinears | Int4ExpertLinears) -> QuantizedExpertLinears:
        """Quantise the linears of all experts, one after another."""
        count, _, columns = linears.sizes
        quantise = int4_by_groups if self._kind == INT4 and columns % GROUP == 0 else int8_by_rows
        dense = (
            linears.weight[e].detach()
            if isinstance(linears, ExpertLinears)
            else linears.weight_of(e).dense()
            for e in range(count)
        )
        return QuantizedExpertLinears([quantise(weight.float()) for weight in dense])
