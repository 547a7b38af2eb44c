"""What a method is said to be: forms of its inputs, and the caches it writes."""

import pytest
import torch
from torch import nn

from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.method_spec import caches_of
from eagle_aot.export.methods import method_specs
from eagle_aot.targets.decoder.kv_cache import CacheSpec, FlatKVCache


def test_a_pairs_methods_take_steps_and_write_their_owners_caches() -> None:
    checkpoints = resolve_checkpoints(
        ExportSpec(target_model="gemma4-tiny", load_format="dummy", dummy_layers=3)
    )
    pair = load_pair(checkpoints, torch.float32, CacheSpec(128, torch.float32, sequences=2)).pair
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
    pair = nn.ModuleDict({"draft": nn.ModuleDict({"memory": FlatKVCache(1, 8, 4, torch.float32)})})
    with pytest.raises(AssertionError, match=r"draft\.memory"):
        caches_of(pair, "draft")
