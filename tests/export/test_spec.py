"""The options of an export: choices, ranges, tap layers, and what a manifest records."""

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
from eagle_aot.export.spec import DrafterName, ExportSpec, Quant, Scheme, checked_tap_layers
from eagle_aot.targets.int4.quantise import SCHEMES
from eagle_aot.targets.int4.quantisers import QUANTS
from eagle_aot.targets.step import MAX_CHAIN_LEN, MAX_ROWS

UNRECORDED = {
    *("target_dir", "draft_dir", "output_dir", "reproduce", "check_only", "self_test_prompts"),
    *("jobs", "as_json"),
}
TAPS = st.none() | st.lists(st.integers(0, 80), min_size=3, max_size=3, unique=True).map(sorted)


def test_command_has_at_most_24_options() -> None:
    flags = {flag for param in main.params for flag in param.opts if flag != "--version"}
    assert len(flags) <= 24


def test_choices_are_those_of_the_tables_that_need_torch() -> None:
    assert set(get_args(DrafterName)) == {"auto", *DRAFTERS}
    assert get_args(Scheme) == tuple(SCHEMES)
    assert get_args(Quant) == QUANTS
    most = {field.name: field.option.most for field in spec_fields(ExportSpec)}
    assert (most["chain_len"], most["max_batch_size"]) == (MAX_CHAIN_LEN, MAX_ROWS)


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
def test_other_tap_layers_are_refused(taps: tuple[Any, ...]) -> None:
    with pytest.raises(SettingError, match=r"--tap-layers .*: expected"):
        checked_tap_layers(taps)
    with pytest.raises(SettingError, match=r"--tap-layers .*: expected"):
        ExportSpec(tap_layers=taps)
