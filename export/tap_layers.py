"""Which hidden states a head was trained on.

Ids written in a config are ambiguous by one: some trainers write boundaries (decoder layers
already applied), others the index of the layer whose output is tapped, which is one less.
"""

from collections.abc import Mapping
from typing import Any

from eagle_aot.errors import CheckpointError, PairingError

KEY = "eagle_aux_hidden_state_layer_ids"


def default_tap_layers(num_layers: int) -> tuple[int, int, int]:
    """Boundaries 2, n // 2 and n - 3, on which every EAGLE-3 trainer agrees.

    Raises PairingError for a target too small to have three distinct ones.
    """
    taps = (2, num_layers // 2, num_layers - 3)
    if not taps[0] < taps[1] < taps[2]:
        raise PairingError(
            f"the head names no tap layers and a target of {num_layers} layers has no default ones"
        )
    return taps


def speculators_tap_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Tap layers of a speculators file, where an id is a boundary; empty when it names none."""
    return _ids(config.get(KEY))


def flat_tap_layers(config: Mapping[str, Any], num_layers: int | None) -> tuple[int, ...]:
    """Tap layers of a flat config; empty when it names none.

    Defaults start at boundary 2, so ids that start at 2 or reach the layer count are boundaries
    and ids that start at 1 are layer outputs. Raises CheckpointError where neither sign is there.
    """
    nested = config.get("eagle_config") or {}
    ids = _ids(nested.get(KEY, config.get(KEY)))
    if not ids or ids[0] == 2 or ids[-1] == num_layers:
        return ids
    if ids[0] == 1:
        return tuple(i + 1 for i in ids)
    raise CheckpointError(
        f"{KEY} {list(ids)} may be boundaries or layer outputs: it neither starts at 1 or 2 "
        "nor ends at the target's layer count"
    )


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
        raise CheckpointError(f"{KEY}: {value!r} is not a list of layer indices")
    if value != sorted(set(value)):
        raise CheckpointError(f"{KEY}: {value} is not ascending")
    return tuple(value)
