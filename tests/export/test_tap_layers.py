"""Which boundaries the ids in a config mean."""

from typing import Any

import pytest

from eagle_aot.errors import CheckpointError, PairingError
from eagle_aot.export.tap_layers import (
    KEY,
    default_tap_layers,
    flat_tap_layers,
    speculators_tap_layers,
)


@pytest.mark.parametrize(
    ("layers", "taps"),
    [(60, (2, 30, 57)), (36, (2, 18, 33)), (8, (2, 4, 5)), (7, (2, 3, 4))],
)
def test_default_boundaries(layers: int, taps: tuple[int, ...]) -> None:
    assert default_tap_layers(layers) == taps


@pytest.mark.parametrize("layers", [1, 4, 5, 6])
def test_a_target_too_small_for_the_defaults_is_refused(layers: int) -> None:
    with pytest.raises(PairingError, match=f"a target of {layers} layers has no default"):
        default_tap_layers(layers)


@pytest.mark.parametrize("ids", [[2, 46, 91, 93], [1, 46, 90], [0], [24, 30, 36]])
def test_ids_of_a_speculators_file_are_boundaries(ids: list[int]) -> None:
    assert speculators_tap_layers({KEY: ids}) == tuple(ids)
    assert speculators_tap_layers({KEY: None}) == speculators_tap_layers({}) == ()


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(
    ("ids", "layers", "taps"),
    [
        ([2, 30, 57], 60, (2, 30, 57)),
        ([2, 30, 57], None, (2, 30, 57)),
        ([24, 30, 36], 36, (24, 30, 36)),  # reaches the last boundary
        ([1, 18, 36], 36, (1, 18, 36)),
        ([1, 17, 33], 36, (2, 18, 34)),  # layer outputs
        ([1, 46, 90], None, (2, 47, 91)),
    ],
)
def test_ids_of_a_flat_file_are_told_apart_by_where_they_start_and_end(
    ids: list[int], layers: int | None, taps: tuple[int, ...], nested: bool
) -> None:
    section: dict[str, Any] = {KEY: ids}
    config = {"eagle_config": section} if nested else section
    assert flat_tap_layers(config, layers) == taps


@pytest.mark.parametrize("config", [{}, {"eagle_config": None}, {"eagle_config": {}}, {KEY: None}])
def test_a_flat_file_may_name_none(config: dict[str, Any]) -> None:
    assert flat_tap_layers(config, 60) == ()


@pytest.mark.parametrize(("ids", "layers"), [([24, 30, 36], 60), ([24, 30, 36], None), ([0, 1], 9)])
def test_ambiguous_ids_are_refused(ids: list[int], layers: int | None) -> None:
    with pytest.raises(CheckpointError, match="boundaries or layer outputs"):
        flat_tap_layers({KEY: ids}, layers)
