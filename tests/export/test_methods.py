"""Tracing a pair's methods: without a copy of it, and with the INT4 limit raised meanwhile."""

import mmap

import pytest
import torch
from torch import Tensor, nn

from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.method_spec import caches_of
from eagle_aot.export.methods import matvec_max_m_raised, method_specs, trace_methods
from eagle_aot.targets.decoder.kv_cache import CacheSpec, FlatKVCache
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.triton_kernels.int4_gemm import api
from support.pairs import dummy, head_of, load

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
    """Its table and caches have 8 TiB each, so that every copy fails."""
    pair = load(dummy(), torch.bfloat16, 128).pair
    target = pair.target
    assert isinstance(target, Gemma4Target)
    table = nn.Parameter(immense(target.embed_weight, 0), requires_grad=False)
    target.embed_tokens.weight = head_of(pair).embed_tokens.weight = table
    caches = [module for module in target.modules() if isinstance(module, FlatKVCache)]
    for cache in caches:
        cache.k, cache.v = immense(cache.k, 1), immense(cache.v, 1)
        cache.slots = cache.k.shape[1]
    assert caches
    specs = method_specs(pair, method_lengths(72, 128, target.sliding_window))
    programs = trace_methods(specs, 1, "xnnpack")
    own = dict(pair.named_parameters(remove_duplicate=False)) | dict(
        pair.named_buffers(remove_duplicate=False)
    )
    for program in programs.values():
        held = program.state_dict | program.constants
        of_pair = {name: tensor for name, tensor in held.items() if name in own}
        assert of_pair and all(tensor is own[name] for name, tensor in of_pair.items())
        assert sum(tensor.nbytes for name, tensor in held.items() if name not in own) < 1 << 10


def test_the_int4_limit_is_restored_on_every_exit() -> None:
    before = api.MATVEC_MAX_M
    with matvec_max_m_raised(64):
        assert api.MATVEC_MAX_M == 64
        with matvec_max_m_raised(2):
            assert api.MATVEC_MAX_M == 2
        assert api.MATVEC_MAX_M == 64
        with pytest.raises(KeyError), matvec_max_m_raised(3):
            raise KeyError("a failure while tracing")
        assert api.MATVEC_MAX_M == 64
    assert before == api.MATVEC_MAX_M
    with pytest.raises(ValueError, match="MATVEC_MAX_M"), matvec_max_m_raised(0):
        pytest.fail("entered with a limit below one row")
    assert before == api.MATVEC_MAX_M


def test_a_pairs_methods_take_steps_and_write_their_owners_caches() -> None:
    pair = load(dummy(dummy_layers=3), positions=128, sequences=2).pair
    methods = method_specs(pair, method_lengths(72, 128, 64, 2))
    prefill, verify, draft, copy = methods.values()
    assert [method.takes_batches for method in methods.values()] == [False, True, True, False]
    assert verify.forms["tail"] == ("int64", ("batch", "rows", 16))
    assert prefill.forms["input_pos"] == ("int64", ("rows",))
    assert draft.forms["features"] == ("float32", ("batch", "rows", 256))
    caches = {f"target.layers.{i}.self_attn.kv_cache.{name}" for i in range(3) for name in "kv"}
    assert prefill.writes == verify.writes == caches
    assert draft.writes == {"draft.kv_cache.k", "draft.kv_cache.v"}
    assert copy.writes == prefill.writes | draft.writes
    assert {*dict(pair.named_buffers())} >= prefill.writes | draft.writes


def test_a_cache_has_the_name_that_a_compiler_knows_it_by() -> None:
    memory = CacheSpec(8, torch.float32).cache(1, 4)
    pair = nn.ModuleDict({"draft": nn.ModuleDict({"memory": memory})})
    with pytest.raises(AssertionError, match=r"draft\.memory"):
        caches_of(pair, "draft")
