"""Copies of models: the same tensors, other modules."""

import torch
from torch import Tensor, nn

from eagle_aot.export.prepare.int4 import dequantize_int4
from eagle_aot.export.prepare.modules import clone_modules, consume
from eagle_aot.targets import load_target
from eagle_aot.targets.int4 import Int4Linear


class Shared(nn.Module):
    """One linear under two names, a name without a module, and a buffer."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.part = nn.ModuleDict({"again": self.linear})
        self.register_module("nothing", None)
        self.register_buffer("cache", torch.zeros(3))


def tensors(model: nn.Module) -> list[tuple[str, int]]:
    pairs = [*model.named_parameters(), *model.named_buffers()]
    return [(name, id(tensor)) for name, tensor in pairs]


def test_a_clone_shares_tensors_and_not_modules() -> None:
    model = Shared()
    clone = clone_modules(model)
    assert tensors(clone) == tensors(model)
    assert clone.linear is clone.part["again"] and clone.linear is not model.linear
    clone.part["again"] = nn.Identity()
    clone.cache = torch.ones(3)
    assert isinstance(model.part["again"], nn.Linear) and not model.cache.any()


def test_a_consumed_model_has_no_children() -> None:
    model = Shared()
    before, part = tensors(model), model.part
    assert tensors(consume(model)) == before
    assert not list(model.children()) and isinstance(part["again"], nn.Linear)


@torch.no_grad()
def test_dequantising_leaves_the_model_as_it_was() -> None:
    target = load_target("gemma4-tiny", max_seq_len=64)
    assert isinstance(target, nn.Module)
    before = dict(target.named_modules())
    dense = dequantize_int4(target)
    assert dict(target.named_modules()) == before
    assert any(isinstance(module, Int4Linear) for module in target.modules())
    assert not any(isinstance(module, Int4Linear) for module in dense.modules())
    assert dense.embed_weight is target.embed_weight
