"""Tracing a model that fits into memory once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses import FakeTensor


@contextmanager
def weights_uncloned(model: nn.Module) -> Iterator[None]:
    """Let strict tracing clone none of the model's parameters and buffers.

    For every tensor that it meets Dynamo keeps a clone until a method is traced (and while it makes
    one, up to two more), for code that asks for values, of which our methods have none. It is given
    a tensor without values instead, so code that does ask stops the trace.
    """
    from torch._dynamo.variables import builder  # takes seconds, which only tracing should

    clone = builder._clone_input
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def without_values(value: Any, fake_mode: Any) -> Any:
        if id(value) not in own or isinstance(value, FakeTensor):
            return clone(value, fake_mode)
        return torch.empty_like(value, device="meta")

    with patch.object(builder, "_clone_input", without_values):
        yield
