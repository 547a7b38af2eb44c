"""One copy of a pair's weights, whoever has the pair."""

import pickle
import resource
import select
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.lowering.side_by_side.shared_pair import SharedPair
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.int4.linear import PackedModule

POSITIONS = 2**18
"""Of two sequences: caches of 269 MB, which nobody may touch."""


@pytest.fixture
def pair() -> Pair:
    """As methods are traced from it: random, packed, of one layer for each that the head taps."""
    checkpoints = resolve_checkpoints(
        ExportSpec(target_model="gemma4-tiny", load_format="dummy", dummy_layers=3)
    )
    sizes = CacheSpec(POSITIONS, torch.bfloat16, sequences=2, on_host=True)
    return pack_int4(load_pair(checkpoints, torch.bfloat16, sizes).pair, 132)


def tensors(pair: Pair) -> dict[str, Tensor]:
    """All of them, by all of their names."""
    parameters = dict(pair.named_parameters(remove_duplicate=False))
    return parameters | dict(pair.named_buffers(remove_duplicate=False))


def test_the_pair_is_the_same_wherever_it_is(pair: Pair) -> None:
    assert any(isinstance(module, PackedModule) for module in pair.modules())
    before = {name: (tensor.clone(), type(tensor)) for name, tensor in weights(pair).items()}
    forms = {name: (t.shape, t.stride(), t.dtype) for name, t in tensors(pair).items()}
    shared = SharedPair(pair)
    elsewhere = shared.pair()
    shared.close()
    for there in (pair, elsewhere):
        assert {name: (t.shape, t.stride(), t.dtype) for name, t in tensors(there).items()} == forms
        for name, tensor in weights(there).items():
            assert torch.equal(tensor, before[name][0]) and type(tensor) is before[name][1], name
            assert not tensor.requires_grad
        assert there.draft.embed_tokens.weight is there.target.embed_weight
    assert str(elsewhere) == str(pair)


def test_no_process_waits_for_what_another_is_handed(pair: Pair) -> None:
    """A pipe holds it: else processes would begin one after another, each behind its imports."""
    shared = SharedPair(pair)
    handed = {name: value for name, value in shared.__getstate__().items() if name != "file"}
    shared.close()
    assert len(pickle.dumps(handed)) < select.PIPE_BUF


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def weights(pair: Pair) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors(pair).items() if "kv_cache" not in name}


def test_there_is_one_copy_of_each_weight(pair: Pair) -> None:
    shared = SharedPair(pair)
    elsewhere = shared.pair()
    shared.close()
    for name, tensor in weights(pair).items():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, name
        tensor.flatten()[:1].view(torch.uint8).copy_(torch.tensor([7]))
        assert tensors(elsewhere)[name].flatten()[:1].view(torch.uint8)[0] == 7, name


def test_tensors_of_one_storage_stay_so(pair: Pair) -> None:
    table = torch.arange(24.0).reshape(4, 6)
    pair.register_buffer("whole", table)
    pair.register_buffer("part", table[1:, 2:].t())
    shared = SharedPair(pair)
    elsewhere = shared.pair()
    shared.close()
    assert torch.equal(elsewhere.get_buffer("part"), table[1:, 2:].t())
    elsewhere.get_buffer("whole")[1, 2] = -1
    assert elsewhere.get_buffer("part")[0, 0] == pair.get_buffer("part")[0, 0] == -1


def test_caches_take_no_memory(pair: Pair) -> None:
    caches = {name: tensor for name, tensor in tensors(pair).items() if "kv_cache" in name}
    size = sum(tensor.nbytes for tensor in caches.values())
    before = resident_bytes()
    shared = SharedPair(pair)
    elsewhere = tensors(shared.pair())
    shared.close()
    assert all(tensors(pair)[name] is cache for name, cache in caches.items())
    assert len({elsewhere[name].data_ptr() for name in caches}) == len(caches)
    assert size > 200e6 and resident_bytes() - before < size / 10
    (first, *_) = caches
    assert not elsewhere[first].flatten()[::4096].any()


def test_a_tensor_that_no_module_holds_is_refused(pair: Pair) -> None:
    """Silently, each process would get a copy."""
    pair.target.hidden = torch.ones(3)  # type: ignore[attr-defined]
    with pytest.raises(KeyError):
        SharedPair(pair)
