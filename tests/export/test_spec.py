"""Options of an export: choices, ranges, lengths, tap layers, and what a manifest records."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.artifact import DRAFTERS
from eagle_aot.common.errors import SettingError
from eagle_aot.common.spec import recorded, spec_fields
from eagle_aot.export.cli import main
from eagle_aot.export.lengths import (
    MethodLengths,
    check_chain_len,
    check_max_batch_size,
    method_lengths,
)
from eagle_aot.export.spec import DrafterName, ExportSpec, Quant, Scheme, checked_tap_layers
from eagle_aot.targets.int4.quantise import SCHEMES
from eagle_aot.targets.int4.quantisers import QUANTS
from eagle_aot.targets.step import MAX_CHAIN_LEN, MAX_SEQUENCES, ring_slots

UNRECORDED = {
    *("target_dir", "draft_dir", "output_dir", "reproduce", "check_only", "self_test_prompts"),
    *("jobs", "as_json", "draft_model", "revision", "push_to"),
}
TAPS = st.none() | st.lists(st.integers(0, 80), min_size=3, max_size=3, unique=True).map(sorted)


def test_command_has_at_most_28_options() -> None:
    """24, --draft-model, --revision and --push-to, which name repositories, and what vLLM has for
    caches."""
    flags = {flag for param in main.params for flag in param.opts if flag != "--version"}
    assert len(flags) <= 28


def test_choices_are_those_of_the_tables_that_need_torch() -> None:
    assert set(get_args(DrafterName)) == {"auto", *DRAFTERS}
    assert get_args(Scheme) == tuple(SCHEMES)
    assert get_args(Quant) == QUANTS
    most = {field.name: field.option.most for field in spec_fields(ExportSpec)}
    assert (most["chain_len"], most["max_batch_size"]) == (MAX_CHAIN_LEN, MAX_SEQUENCES)


def test_options_that_change_the_artifact_are_recorded() -> None:
    assert set(recorded(ExportSpec())) == set(ExportSpec.__struct_fields__) - UNRECORDED


@given(
    taps=TAPS,
    layers=st.none() | st.integers(1, 80),
    chain_len=st.none() | st.integers(1, 7),
    quant=st.sampled_from(["none", "int8", "int4"]),
    scheme=st.none() | st.sampled_from(["int4-g32", "int4-g128-hqq"]),
)
def test_recorded_options_read_back_as_the_same_spec(
    taps: list[int] | None,
    layers: int | None,
    chain_len: int | None,
    quant: Quant,
    scheme: Scheme | None,
) -> None:
    spec = ExportSpec(
        target_model="gemma4-31b",
        tap_layers=None if taps is None else tuple(taps),
        dummy_layers=layers,
        quantize=scheme,
        draft_quant=quant,
        chain_len=chain_len,
        backend="xnnpack",
    )
    assert msgspec.convert(json.loads(json.dumps(recorded(spec))), ExportSpec) == spec


@pytest.mark.parametrize(("options", "message"), [
    ({"tap_layers": (3, 2)}, "expected distinct, ascending boundaries"),
    ({"cpu_weights": "int8", "backend": "cuda"}, "--cpu-weights int8: is for XNNPACK"),
    ({"cpu_weights": "int8", "table_quant": "int4"}, "INT8 already: leave one of them out"),
    ({"image_tokens": (280,)}, "--image-tokens goes with --inputs text,image"),
    ({"no_self_test": True, "self_test_prompts": Path("x")}, "--no-self-test skips"),
])  # fmt: skip
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        ExportSpec(**options)


@pytest.mark.parametrize("taps", [(2, 30, 57), (0,)])
def test_ascending_tap_layers_are_taken(taps: tuple[int, ...]) -> None:
    assert checked_tap_layers(list(taps)) == ExportSpec(tap_layers=taps).tap_layers == taps


@pytest.mark.parametrize("taps", [(), ("a",), (2.5,), (True,), (3, 2), (2, 2), (-1, 2)])
def test_unordered_or_invalid_tap_layers_are_refused(taps: tuple[Any, ...]) -> None:
    with pytest.raises(SettingError, match=r"--tap-layers .*: expected"):
        checked_tap_layers(taps)
    with pytest.raises(SettingError, match=r"--tap-layers .*: expected"):
        ExportSpec(tap_layers=taps)


@pytest.mark.parametrize("chain_len", [-1, 0, 16, 100])
def test_a_chain_that_no_tail_holds_is_refused(chain_len: int) -> None:
    with pytest.raises(SettingError, match=r"--chain-len -?\d+: must be in \[1, 15\]"):
        check_chain_len(chain_len)
    with pytest.raises(SettingError, match=r"--chain-len .* from 1 to 15$"):
        ExportSpec(chain_len=chain_len)


def test_every_allowed_chain_passes() -> None:
    for chain_len in range(1, 16):
        check_chain_len(chain_len)
        assert ExportSpec(chain_len=chain_len).chain_len == chain_len


@pytest.mark.parametrize("sequences", [-1, 0, 129])
def test_more_sequences_than_a_forward_has_rows_are_refused(sequences: int) -> None:
    message = r"--max-batch-size -?\d+: must be in \[1, 128\]"
    with pytest.raises(SettingError, match=message):
        check_max_batch_size(sequences)
    with pytest.raises(SettingError, match=r"--max-batch-size .* from 1 to 128$"):
        ExportSpec(max_batch_size=sequences)
    with pytest.raises(SettingError, match=message):
        method_lengths(512, 4096, 0, sequences)
    with pytest.raises(SettingError, match=r"must be in \[1, 64\]"):
        method_lengths(512, 4096, 0, 65, max_step_rows=64)


@pytest.mark.parametrize(("max_prefill", "max_seq_len", "window", "sequences", "expected"), [
    (512, 4096, 1024, 1, MethodLengths(64, 256, 65, 512, 1)),
    (512, 4096, 0, 1, MethodLengths(64, 256, 65, 512, 1)),
    (512, 256, 0, 1, MethodLengths(64, 256, 65, 255, 1)),
    (512, 4096, 128, 1, MethodLengths(64, 256, 65, 128, 1)),
    (512, 4096, 16, 1, MethodLengths(64, 256, 65, 96, 1)),
    (512, 4096, 1, 1, MethodLengths(64, 256, 65, 96, 1)),
    (66, 4096, 1024, 1, MethodLengths(64, 256, 65, 66, 1)),
    (512, 4096, 1024, 64, MethodLengths(64, 256, 65, 512, 64)),
])  # fmt: skip
def test_a_prefill_fits_context_and_ring_and_never_reaches_the_small_path(
    max_prefill: int, max_seq_len: int, window: int, sequences: int, expected: MethodLengths
) -> None:
    lengths = method_lengths(max_prefill, max_seq_len, window, sequences)
    assert lengths == expected
    assert lengths.min_prefill > lengths.max_rows
    assert lengths.max_draft == max(expected.max_prefill, 64)


def test_a_ring_may_be_made_for_longer_chunks() -> None:
    assert method_lengths(2048, 4096, 1024).max_prefill == 1024
    assert method_lengths(2048, 4096, 1024, chunk=2048).max_prefill == 2048
    assert ring_slots(1024) == 2048 and ring_slots(1024, 2048) == 3072


def test_recurrent_states_take_prompts_by_blocks() -> None:
    lengths = method_lengths(1000, 4096, 0, block=32)
    assert (lengths.min_prefill, lengths.max_prefill) == (96, 992)


def test_a_ring_is_as_short_as_its_chunks() -> None:
    assert method_lengths(256, 4096, 1024, chunk=256).max_prefill == 256
    assert ring_slots(1024, 256) == 1280 and ring_slots(1024, 80) == 1024 + 96


@pytest.mark.parametrize(("max_prefill", "max_seq_len", "window", "message"), [
    (65, 4096, 1024, "longest prefill chunk would be 65, the shortest is 65"),
    (64, 4096, 0, "longest prefill chunk would be 64, the shortest is 65"),
    (512, 65, 0, "longest prefill chunk would be 64, the shortest is 65"),
])  # fmt: skip
def test_lengths_that_leave_no_prefill_are_refused(
    max_prefill: int, max_seq_len: int, window: int, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        method_lengths(max_prefill, max_seq_len, window)
