"""The ways in which an assistant may have been trained to read its target."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from eagle_aot.export.drafters.gemma4_assistant.config import Wiring
from eagle_aot.export.drafters.gemma4_assistant.model import Gemma4Assistant, source_layers
from eagle_aot.export.drafters.gemma4_assistant.reading import LAYERS, OFFSETS, READING
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.gemma4.config import SLIDING

NO_OPTION = "no option reads it so: the files were made for another program"
WINDOWS = {1: "transformers'", 0: "vLLM's", -1: "mlx-vlm's"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One way to run an assistant. `late` is how many positions too old its states are; those of
    half a text tell it nothing, which is the control."""

    name: str
    remedy: str | None
    wiring: Wiring
    late: int | None = 0

    def control(self) -> "Reading":
        """The same with states that tell it nothing."""
        return replace(self, name=f"{self.name}, states of other positions", late=None)


def chosen_reading(draft: Gemma4Assistant) -> Reading:
    """The one that an export takes."""
    return Reading(name="as resolved", remedy=None, wiring=draft.config.wiring)


def other_readings(draft: Gemma4Assistant, target: Gemma4Target) -> Iterator[Reading]:
    """Every other one, one thing changed in each."""
    chosen = chosen_reading(draft)
    yield from _offsets(chosen, slides=SLIDING in draft.config.text.layer_types)
    yield from _layers(draft, chosen, target)
    yield replace(chosen, name="states a position late", remedy=NO_OPTION, late=1)
    wiring, width = chosen.wiring, target.hidden_size
    unscale = f"divide the first {width} columns of pre_projection by {width} ** 0.5"
    for name, other, way_out in (
        ("states before the final norm", replace(wiring, raw_state=True), NO_OPTION),
        ("embeddings unscaled", replace(wiring, raw_embedding=True), unscale),
        ("halves swapped", replace(wiring, halves_swapped=True),
         "swap the column halves of pre_projection"),
    ):  # fmt: skip
        yield replace(chosen, name=name, remedy=way_out, wiring=other)


def _offsets(chosen: Reading, *, slides: bool) -> Iterator[Reading]:
    """Where queries stand, and where windows end."""
    wiring = chosen.wiring
    position = 1 - wiring.position_offset
    where = "the bonus token" if position else "the newest key (vLLM's)"
    yield replace(
        chosen,
        name=f"queries at {where}",
        remedy=remedy("position_offset", position),
        wiring=replace(wiring, position_offset=position),
    )
    for window in OFFSETS["window_offset"] if slides else ():
        if window != wiring.window_offset:
            yield replace(
                chosen,
                name=f"window {window:+d} ({WINDOWS[window]})",
                remedy=remedy("window_offset", window),
                wiring=replace(wiring, window_offset=window),
            )


def _layers(draft: Gemma4Assistant, chosen: Reading, target: Gemma4Target) -> Iterator[Reading]:
    """Keys and values of the layer of a kind before the one that is read, and of the one behind."""
    types, read = target.config.layer_types, source_layers(draft, target, chosen.wiring)
    for kind, layer in read.items():
        same = [i for i, other in enumerate(types) if other == kind]
        at = same.index(layer)
        for near in [*same[max(at - 1, 0) : at], *same[at + 1 : at + 2]]:
            layers = sorted((near if other == kind else i) for other, i in read.items())
            yield replace(
                chosen,
                name=f"keys of layer {near}",
                remedy=remedy(LAYERS, layers),
                wiring=replace(chosen.wiring, kv_layers=tuple(layers)),
            )


def remedy(key: str, value: object) -> str:
    """How to make a value of ours the chosen one."""
    return f'"{READING}": {{"{key}": {value}}} in the assistant\'s config.json'
