"""Other implementations of attention, beside which the bench times this project's."""

import pytest
import torch

from eagle_aot.lab.bench.kernels.sdpa.layers import Cache, Layer, Queries
from eagle_aot.lab.bench.kernels.sdpa.peers import seen_by_row, stock_slice
from eagle_aot.triton_kernels.sdpa_splitk.reference import attend


@pytest.mark.parametrize("context", [5, 20])
@pytest.mark.parametrize("window", [0, 8])
def test_a_slice_holds_what_rows_see_and_nothing_else(context: int, window: int) -> None:
    layer, rows = Layer("small", 4, 2, 16, window), 3
    torch.manual_seed(0)
    none = torch.empty(0)
    queries = Queries(layer, context, torch.randn(1, rows, 4, 16), none, none, none)
    text = [torch.randn(2, context, 16) for _ in range(2)]
    seen = [kv[:, context - queries.seen :] for kv in text]
    cache = Cache(
        *(torch.nn.functional.pad(kv, (0, 0, 0, 9), value=torch.nan)[:, None] for kv in seen)
    )
    found = stock_slice(queries)(cache)[0].transpose(0, 1)
    assert bool(seen_by_row(queries)[:, 0].any())
    for row in range(rows):
        end = context - rows + row + 1
        k, v = (kv[:, max(0, end - window) if window else 0 : end] for kv in text)
        torch.testing.assert_close(found[row], attend(queries.q[0, row], k, v, layer.scale))
