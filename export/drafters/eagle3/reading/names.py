"""The names under which public heads store their tensors, brought to one set.

Layer 0 is `layers.0` (vLLM speculators, NVIDIA ModelOpt, NeMo) or `midlayer` (SafeAILab,
SpecForge, AngelSlim); deeper ones are `layers.i`, `midlayer.i` (ModelOpt's Megatron export) or
`additional_layers.(i-1)` (older SGLang).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from eagle_aot.common.errors import CheckpointError

RENAMES = (
    (re.compile(r"^(draft_model|eagle_module|module)\."), ""),
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\.(\d+\.)"), r"layers.\1"),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^draft_id_to_target_id$"), "d2t"),
)
ADDITIONAL = re.compile(r"^additional_layers\.(\d+)\.")
UNUSED = re.compile(r"^verifier_|rotary_emb|inv_freq")
LAYER = re.compile(r"^layers\.(\d+)\.")
DEEP_NORM = re.compile(r"^(layers\.[1-9]\d*)\.hidden_norm\.weight$")

MAPS = frozenset({"d2t", "t2d"})
"""Tensors that are no parameters."""


def canonical_names(stored_names: Iterable[str], where: Path) -> dict[str, str]:
    """Canonical tensor name -> stored name, unused tensors left out.

    Raises CheckpointError where two stored names mean one tensor.
    """
    names: dict[str, str] = {}
    for stored in stored_names:
        name = canonical(stored)
        if UNUSED.search(name):
            continue
        if name in names:
            raise CheckpointError(f"{where}: {names[name]!r} and {stored!r} are the same tensor")
        names[name] = stored
    return dict(_with_one_pre_norm(names))


def canonical(name: str) -> str:
    """One stored name in our spelling."""
    for pattern, replacement in RENAMES:
        name = pattern.sub(replacement, name)
    return ADDITIONAL.sub(lambda match: f"layers.{int(match[1]) + 1}.", name)


def count_layers(names: Iterable[str]) -> int:
    """Decoder layers by their tensors: trainers copy `num_hidden_layers` from the target."""
    found = [int(match[1]) for name in names if (match := LAYER.match(name))]
    return 1 + max(found, default=-1)


def _with_one_pre_norm(names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """ModelOpt's deeper layers call the norm before their attention `hidden_norm`."""
    for name, stored in names.items():
        match = DEEP_NORM.match(name)
        plain = f"{match[1]}.input_layernorm.weight" if match else name
        yield (name if plain in names else plain), stored
