"""What several calls of a Triton kernel take, computed once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.fx import Node


@contextmanager
def inputs_realised_once() -> Iterator[None]:
    """Let Inductor store what calls of Triton kernels take as soon as it is computed.

    Otherwise it would compute it anew for each call, by a launch of its own: the cosines and slots
    that layers share once a layer, and a product's rows once for each tile that they may take.
    """
    from torch._inductor.graph import GraphLowering  # takes seconds
    from torch._inductor.ir import TensorBox

    call = torch.ops.higher_order.triton_kernel_wrapper_mutation
    run_node = GraphLowering.run_node

    def run_and_store(graph: GraphLowering, node: Node) -> Any:
        result = run_node(graph, node)
        if isinstance(result, TensorBox) and any(user.target is call for user in node.users):
            result.realize()
        return result

    with patch.object(GraphLowering, "run_node", run_and_store):
        yield
