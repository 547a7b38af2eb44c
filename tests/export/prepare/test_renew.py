"""Models anew: the same tensors, other modules."""

import torch
from torch import nn

from eagle_aot.export.prepare.fold import fold_int4
from eagle_aot.export.prepare.renew import renewed, taken_over
from eagle_aot.targets import load_target
from eagle_aot.targets.int4 import Int4Linear


def shared() -> nn.Module:
    """One linear in two places, an empty place, and a buffer."""
    linear = nn.Linear(2, 2)
    model = nn.Sequential(linear, nn.ModuleDict({"again": linear}))
    model.register_module("nothing", None)
    model.register_buffer("cache", torch.zeros(3))
    return model


def tensors(model: nn.Module) -> list[tuple[str, int]]:
    pairs = [*model.named_parameters(), *model.named_buffers()]
    return [(name, id(tensor)) for name, tensor in pairs]


def test_the_tensors_are_the_same_and_what_is_exchanged_is_not_seen_before() -> None:
    model = shared()
    anew = renewed(model)
    assert tensors(anew) == tensors(model)
    assert anew[0] is anew[1]["again"] and anew[0] is not model[0]
    anew[1]["again"] = nn.Identity()
    anew.cache = torch.ones(3)
    assert isinstance(model[1]["again"], nn.Linear) and not model.cache.any()


def test_what_is_taken_over_is_gone() -> None:
    model = shared()
    before, part = tensors(model), model[1]
    assert tensors(taken_over(model)) == before
    assert not list(model.children()) and isinstance(part["again"], nn.Linear)


@torch.no_grad()
def test_folding_leaves_the_model_as_it_was() -> None:
    target = load_target("gemma4-tiny", max_seq_len=64)
    assert isinstance(target, nn.Module)
    before = dict(target.named_modules())
    folded = fold_int4(target)
    assert dict(target.named_modules()) == before
    assert any(isinstance(module, Int4Linear) for module in target.modules())
    assert not any(isinstance(module, Int4Linear) for module in folded.modules())
    assert folded.embed_weight is target.embed_weight
