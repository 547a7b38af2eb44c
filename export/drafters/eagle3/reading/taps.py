"""Decide which boundaries of the target a head taps.

Ids in a config are ambiguous by one: some trainers write boundaries (the number of decoder layers
already applied), others the index of the layer whose output is tapped, which is one less.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_aot.common.errors import CheckpointError, PairingError
from eagle_aot.export.spec import checked_tap_layers
from eagle_aot.targets.config_section import ConfigSection

KEY = "eagle_aux_hidden_state_layer_ids"
ANGELSLIM_KEY = "aux_hidden_states_layer_ids"
WAY_OUT = "name the boundaries with --tap-layers a,b,c"


@dataclass(frozen=True, slots=True)
class TapChoice:
    """Boundaries, ascending, and the reason for them; empty if the checkpoint names none."""

    boundaries: tuple[int, ...]
    reason: str


UNNAMED = TapChoice((), "the checkpoint names none")


def choose_tap_layers(
    config: ConfigSection, num_layers: int | None, override: Sequence[int] | None = None
) -> TapChoice:
    """Return the boundaries in `override` or the config; `num_layers` is the target's, if known.

    Raises CheckpointError for invalid or ambiguous ids, and for keys that mean different
    boundaries.
    """
    if override is not None:
        return TapChoice(checked_tap_layers(override), "named by --tap-layers")
    choices = list(_declared(config, num_layers))
    for choice in choices[1:]:
        if choice.boundaries != choices[0].boundaries:
            raise CheckpointError(
                f"{config.where}: {choices[0].reason} gives {list(choices[0].boundaries)}, "
                f"{choice.reason} gives {list(choice.boundaries)}: {WAY_OUT}"
            )
    return choices[0] if choices else UNNAMED


def default_tap_layers(num_layers: int) -> TapChoice:
    """Return boundaries 2, n // 2 and n - 3, the default of every EAGLE-3 trainer.

    Raises PairingError for a target in which these are not three boundaries.
    """
    taps = (2, num_layers // 2, num_layers - 3)
    if not taps[0] < taps[1] < taps[2]:
        raise PairingError(
            "the head names no tap layers and a target of "
            f"{num_layers} layers has no default ones: {WAY_OUT}"
        )
    return TapChoice(taps, f"none named: 2, n // 2 and n - 3 of the target's {num_layers} layers")


def _declared(config: ConfigSection, num_layers: int | None) -> Iterator[TapChoice]:
    """Yield the choice of each key that names taps."""
    nested = config.section("eagle_config")
    if ids := _ids(config, KEY):
        if config.has("speculators_model_type"):
            yield _speculators(ids)
        else:
            yield _guessed(config, KEY, ids, num_layers)
    if ids := _ids(nested, KEY):
        yield _guessed(config, f"eagle_config.{KEY}", ids, num_layers)
    for section, prefix in ((config, ""), (nested, "eagle_config.")):
        if ids := _ids(section, ANGELSLIM_KEY):
            yield _outputs(prefix + ANGELSLIM_KEY, ids, "AngelSlim writes layer outputs")


def _speculators(ids: tuple[int, ...]) -> TapChoice:
    reason = f"{KEY} {list(ids)}: a speculators file names boundaries"
    if ids[0] == 1:
        outputs = ",".join(str(i + 1) for i in ids)
        reason += f" (converted files may hold layer outputs, which is --tap-layers {outputs})"
    return TapChoice(ids, reason)


def _guessed(
    config: ConfigSection, key: str, ids: tuple[int, ...], num_layers: int | None
) -> TapChoice:
    """Interpret ids of a flat file: the default taps start at boundary 2, or layer output 1.

    The layer count is not the index of a layer, so ids that reach it are boundaries.
    """
    if ids[-1] == num_layers:
        return TapChoice(ids, f"{key} {list(ids)}: boundaries, as they reach the layer count")
    if ids[0] == 2:
        return TapChoice(ids, f"{key} {list(ids)}: boundaries, as they start at 2")
    if ids[0] == 1:
        return _outputs(key, ids, "layer outputs, as they start at 1")
    raise CheckpointError(
        f"{config.where}: {key} {list(ids)} may be boundaries or layer outputs: it "
        f"neither starts at 1 or 2 nor ends at the target's layer count: {WAY_OUT}"
    )


def _outputs(key: str, ids: tuple[int, ...], why: str) -> TapChoice:
    return TapChoice(tuple(i + 1 for i in ids), f"{key} {list(ids)}: {why}")


def _ids(section: ConfigSection, key: str) -> tuple[int, ...]:
    value: Any = section.values.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
        raise CheckpointError(f"{section.where}: {key}: {value!r} is not a list of layer indices")
    if value != sorted(set(value)):
        raise CheckpointError(f"{section.where}: {key}: {value} is not ascending: {WAY_OUT}")
    return tuple(value)
