"""Which boundaries the ids in a config mean."""

from pathlib import Path
from typing import Any

import pytest

from eagle_aot.common.errors import CheckpointError, PairingError
from eagle_aot.export.drafters.eagle3.reading.taps import (
    ANGELSLIM_KEY,
    KEY,
    choose_tap_layers,
    default_tap_layers,
)
from eagle_aot.targets.config_section import ConfigSection

SPECULATORS = {"speculators_model_type": "eagle3"}


def choose(
    config: dict[str, Any], layers: int | None = 60, override: list[int] | None = None
) -> tuple[int, ...]:
    section = ConfigSection(config, Path("config.json"))
    return choose_tap_layers(section, layers, override).boundaries


@pytest.mark.parametrize(
    ("layers", "taps"), [(60, (2, 30, 57)), (36, (2, 18, 33)), (8, (2, 4, 5)), (7, (2, 3, 4))]
)
def test_default_boundaries(layers: int, taps: tuple[int, ...]) -> None:
    assert default_tap_layers(layers).boundaries == taps


@pytest.mark.parametrize("layers", [1, 4, 5, 6])
def test_a_target_too_small_for_the_defaults_is_refused(layers: int) -> None:
    with pytest.raises(PairingError, match=f"a target of {layers} layers has no default.*--tap-l"):
        default_tap_layers(layers)


@pytest.mark.parametrize("ids", [[2, 46, 91, 93], [1, 46, 90], [0], [24, 30, 36]])
def test_ids_of_a_speculators_file_are_boundaries(ids: list[int]) -> None:
    assert choose(SPECULATORS | {KEY: ids}) == tuple(ids)
    assert choose(SPECULATORS | {KEY: None}) == choose(SPECULATORS) == ()


def test_a_speculators_file_that_starts_at_1_is_reported_with_a_warning() -> None:
    section = ConfigSection(SPECULATORS | {KEY: [1, 46, 90]}, Path("config.json"))
    assert choose_tap_layers(section, 94).reason.endswith("which is --tap-layers 2,47,91)")


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(("ids", "layers", "taps"), [
    ([2, 30, 57], 60, (2, 30, 57)),
    ([2, 30, 57], None, (2, 30, 57)),
    ([24, 30, 36], 36, (24, 30, 36)),  # reaches the last boundary
    ([1, 18, 36], 36, (1, 18, 36)),
    ([1, 17, 33], 36, (2, 18, 34)),  # layer outputs
    ([1, 46, 90], None, (2, 47, 91)),
])  # fmt: skip
def test_first_and_last_id_of_a_flat_file_decide_what_ids_mean(
    ids: list[int], layers: int | None, taps: tuple[int, ...], nested: bool
) -> None:
    section: dict[str, Any] = {KEY: ids}
    assert choose({"eagle_config": section} if nested else section, layers) == taps


@pytest.mark.parametrize("ids", [[1, 17, 32], [0, 5, 9], [2, 18, 33]])
def test_angelslims_key_names_layer_outputs(ids: list[int]) -> None:
    expected = tuple(i + 1 for i in ids)
    assert (
        choose({ANGELSLIM_KEY: ids}) == choose({"eagle_config": {ANGELSLIM_KEY: ids}}) == expected
    )


@pytest.mark.parametrize("config", [{}, {"eagle_config": None}, {"eagle_config": {}}, {KEY: None}])
def test_a_flat_file_may_name_none(config: dict[str, Any]) -> None:
    assert choose(config) == ()


@pytest.mark.parametrize(("ids", "layers"), [([24, 30, 36], 60), ([24, 30, 36], None), ([0, 1], 9)])
def test_ambiguous_ids_are_refused_unless_overruled(ids: list[int], layers: int | None) -> None:
    with pytest.raises(CheckpointError, match=r"boundaries or layer outputs.*--tap-layers a,b,c$"):
        choose({KEY: ids}, layers)
    assert choose({KEY: ids}, layers, [3, 4, 5]) == (3, 4, 5)


def test_keys_may_say_the_same_in_two_ways() -> None:
    assert choose({KEY: [2, 30, 57], "eagle_config": {KEY: [1, 29, 56]}}) == (2, 30, 57)
    assert choose({KEY: [1, 29, 56], ANGELSLIM_KEY: [1, 29, 56]}) == (2, 30, 57)


@pytest.mark.parametrize("config", [
    {KEY: [2, 30, 57], "eagle_config": {KEY: [2, 30, 58]}},
    {ANGELSLIM_KEY: [2, 30, 57], "eagle_config": {KEY: [2, 30, 57]}},
    SPECULATORS | {KEY: [1, 29, 56], "eagle_config": {KEY: [1, 29, 56]}},
])  # fmt: skip
def test_keys_that_contradict_one_another_are_refused_unless_overruled(
    config: dict[str, Any],
) -> None:
    with pytest.raises(CheckpointError, match=r"gives \[.*gives \[.*--tap-layers a,b,c$"):
        choose(config)
    assert choose(config, 60, [2, 30, 57]) == (2, 30, 57)
