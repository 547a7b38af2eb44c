"""The decisions of an export in its manifest, compared with real graphs."""

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._subclasses import FakeTensorMode

from eagle_aot.artifact import METHODS
from eagle_aot.common.errors import CheckpointError
from eagle_aot.export import ExportSpec, Pair, run_check
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.methods import method_specs
from eagle_aot.export.publish.describe import cache_bytes, describe_constants, describe_decisions
from support.pairs import dummy, head_of, load, short_dummy

LAYERS = 3  # of a dummy, all sliding


@pytest.fixture(scope="module")
def cuda() -> dict[str, Any]:
    """The decisions for a dummy for CUDA, which any machine can trace."""
    programs = run_check(
        short_dummy(dummy_layers=LAYERS, draft_quant="int8", backend="cuda", attention="splitk")
    )
    with FakeTensorMode():
        loaded = load(dummy(dummy_layers=LAYERS, draft_quant="int8"), torch.bfloat16, 128)
        methods = method_specs(loaded.pair, method_lengths(72, 128, 64), use_splitk=True)
    found = describe_decisions(loaded, "cuda", methods, programs, loaded.pair.target.sequences)
    stored: dict[str, Any] = json.loads(json.dumps(found))
    return stored


def test_taps_and_options_come_with_their_reasons() -> None:
    loaded = load(ExportSpec(target_model="gemma4-tiny"))
    found = loaded.reading
    assert found["taps"]["value"] == [2, 4, 5]
    assert "names boundaries" in found["taps"]["source"]
    assert found["layout"]["value"] == "vLLM speculators"
    assert found["flags"]["final_norm"] == {"value": True, "source": "norm.weight is there"}
    flags = {name: flag["value"] for name, flag in found["flags"].items()}
    recorded = found["head"] | flags | {"tap_layers": (2, 4, 5)}
    assert recorded == asdict(head_of(loaded.pair).config)


def test_taps_of_the_command_line_are_recorded_with_their_source() -> None:
    taps = load(ExportSpec(target_model="gemma4-tiny", tap_layers=(1, 2, 3))).reading["taps"]
    assert taps == {"value": [1, 2, 3], "source": "named by --tap-layers"}


def test_a_dummy_has_no_checkpoint_to_give_reasons(cuda: dict[str, Any]) -> None:
    assert cuda["layout"] is None and cuda["flags"] == {}
    assert cuda["taps"] == {"value": [0, 1, 2], "source": "a dummy taps where public heads do"}


def test_linears_are_recorded_by_format(cuda: dict[str, Any]) -> None:
    linears = cuda["linears"]
    assert linears["target.layers.*.mlp.gate_proj"] == {"int4-g32": LAYERS}
    assert linears["draft.fc"] == linears["draft.layers.*.mlp.down_proj"] == {"int8-g32": 1}
    plain = load(ExportSpec(target_model="gemma4-tiny", draft_quant="none")).linears
    assert plain["draft.fc"] == plain["draft.lm_head"] == {"dense": 1}


def test_kernels_are_those_of_the_graphs(cuda: dict[str, Any]) -> None:
    assert cuda["dtype"] == "bfloat16"
    kinds = dict(zip(METHODS, ("prompt", "splitk", "splitk"), strict=True))
    assert cuda["attention"] == kinds | {"draft_prefill": "stock"}  # which reads no cache
    assert tuple(cuda["kernels"]) == (*METHODS, "draft_prefill")
    prefill, verify, draft, _ = cuda["kernels"].values()
    assert {use["tile_rows"] for use in prefill["eagle_aot::int4_large_m"]} == {256}
    small = verify["eagle_aot::int4_small_m"]
    assert {tuple(use["tile_rows"]) for use in small} == {(8, 16, 32, 48, 64, 80, 96, 64)}
    assert all(use["splits"] >= 1 and use["tile_features"] == 128 for use in small)
    (ring,) = verify["eagle_aot::sdpa_splitk"]
    assert (ring["window"], ring["calls"]) == (64, LAYERS)
    (flat,) = draft["eagle_aot::sdpa_splitk"]
    assert (flat["window"], flat["calls"]) == (0, 1)
    (prompt,) = prefill["eagle_aot::sdpa_prompt"]
    assert (prompt["window"], prompt["row_tile"], prompt["calls"]) == (64, 128, LAYERS)


def test_caches_are_recorded_by_sequence_and_owner() -> None:
    """Of two sequences; keys and values of two heads of 64 in bfloat16, a ring in the target's
    layers, all 128 positions and room for a step in the head's."""
    with FakeTensorMode():
        pair = load(dummy(dummy_layers=LAYERS), torch.bfloat16, 128, sequences=2).pair
        methods = method_specs(pair, method_lengths(72, 128, 64, 2))
    slot = 2 * 2 * 64 * 2
    found = cache_bytes(methods, 2)
    assert found.target_bytes_of_a_sequence == LAYERS * 168 * slot
    assert found.draft_bytes_of_a_sequence == (128 + 96) * slot
    assert found.bytes_of_a_sequence == (LAYERS * 168 + 128 + 96) * slot
    assert (found.bytes, found.sequences) == (2 * found.bytes_of_a_sequence, 2)


def test_a_stop_id_outside_the_vocabulary_is_refused() -> None:
    pair = cast(Pair, SimpleNamespace(target=SimpleNamespace(vocab_size=8)))
    with pytest.raises(CheckpointError, match="eos_token_id 8 is outside the vocabulary of 8"):
        describe_constants(pair, method_lengths(72, 128, 64), 4, (1, 8))
