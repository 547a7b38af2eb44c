"""Tracing takes no memory for weights."""

import mmap

import pytest
import torch
from torch import Tensor, nn

from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.load import Source
from eagle_aot.export.methods import export_methods
from eagle_aot.export.uncloned_weights import weights_uncloned
from eagle_aot.targets.decoder.kv_cache import FlatKVCache
from eagle_aot.targets.gemma4 import Gemma4Target

NORESERVE = 0x4000  # of Linux; Python has no name for it before 3.13
TOO_MUCH = 2**43
"""Bytes that no machine has: Linux lends their addresses, and refuses to allocate them."""


def addresses() -> mmap.mmap:
    """Of as many zeros, which take no memory before they are written."""
    return mmap.mmap(-1, TOO_MUCH, flags=mmap.MAP_PRIVATE | NORESERVE)


def is_refused() -> bool:
    """Whether this machine lends and refuses like that, which `vm.overcommit_memory` can change."""
    try:
        addresses().close()
    except OSError:
        return False
    try:
        torch.empty(TOO_MUCH, dtype=torch.uint8)
    except RuntimeError:
        return True
    return False


def immense(like: Tensor, dim: int) -> Tensor:
    """Zeros as `like`, but longer along `dim`."""
    shape = [-1 if i == dim else size for i, size in enumerate(like.shape)]
    assert TOO_MUCH % (like.nbytes // like.shape[dim]) == 0
    return torch.frombuffer(addresses(), dtype=like.dtype).view(shape)


@pytest.mark.skipif(not is_refused(), reason="this machine lends memory that it does not have")
def test_a_pair_that_memory_could_not_hold_is_traced() -> None:
    """With a table and caches of 8 TiB each, of which every copy is refused."""
    source = Source.find("gemma4-tiny", None, None, "dummy", dummy_layers=6)
    pair = source.load(64, torch.bfloat16)
    target = pair.target
    assert isinstance(target, Gemma4Target)
    table = nn.Parameter(immense(target.embed_weight, 0), requires_grad=False)
    target.embed_tokens.weight = pair.draft.embed_tokens.weight = table
    caches = [module for module in target.modules() if isinstance(module, FlatKVCache)]
    for cache in caches:
        cache.k, cache.v = immense(cache.k, 2), immense(cache.v, 2)
    assert caches
    programs = export_methods(pair, method_lengths(24, 64, target.sliding_window, 1))
    own = dict(pair.named_parameters(remove_duplicate=False)) | dict(
        pair.named_buffers(remove_duplicate=False)
    )
    for program in programs.values():
        held = program.state_dict | program.constants
        assert all(tensor is own[name] for name, tensor in held.items())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_zero(tensor: Tensor) -> bool:
    return bool((tensor == 0).all())


class Asking(nn.Module):
    """Decides by the values of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return x if is_zero(self.weight) else x + self.weight


def test_code_that_asks_for_a_weights_values_is_refused() -> None:
    """Not answered with others."""
    model, inputs = Asking(), (torch.ones(4),)
    torch.export.export(model, inputs, strict=True)
    with pytest.raises(Exception, match="meta"), weights_uncloned(model):
        torch.export.export(model, inputs, strict=True)
