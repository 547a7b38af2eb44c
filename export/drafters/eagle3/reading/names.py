"""The names of tensors in public heads, and the canonical names that replace them.

Layer 0 is `layers.0` (vLLM speculators, NVIDIA ModelOpt, NeMo) or `midlayer` (SafeAILab,
SpecForge, AngelSlim); deeper ones are `layers.i`, `midlayer.i` (ModelOpt's Megatron export) or
`additional_layers.(i-1)` (older SGLang).
"""

import itertools
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
ADDITIONAL = re.compile(r"^additional_layers\.(\d{1,9})\.")
UNUSED = re.compile(r"^verifier_|rotary_emb|inv_freq")
LAYER = re.compile(r"^layers\.(\d+)\.")
DEEP_NORM = re.compile(r"^(layers\.[1-9]\d*)\.hidden_norm\.weight$")

MASK_HIDDEN = "mask_hidden"
"""The tensor of a P-EAGLE head that replaces the taps of positions without features."""
OWN_IDS = ("pard_token", "ptd_token_id")
"""Keys in config.json that only P-EAGLE heads have: the id of the mask token. MASK_HIDDEN and these
are named as in vLLM's `llm_base_proposer.py` and `llama_eagle3.py`."""


def canonical_names(stored_names: Iterable[str], config_path: Path) -> dict[str, str]:
    """Return the stored name of each canonical tensor name, without unused tensors.

    Raises CheckpointError if two stored names mean one tensor.
    """
    names: dict[str, str] = {}
    for stored in stored_names:
        name = canonical(stored)
        if UNUSED.search(name):
            continue
        if name in names:
            pair = f"{names[name]!r} and {stored!r}"
            raise CheckpointError(f"{config_path}: {pair} are the same tensor")
        names[name] = stored
    return dict(_with_one_pre_norm(names))


def canonical(name: str) -> str:
    """Return the canonical name of a stored name."""
    for pattern, replacement in RENAMES:
        name = pattern.sub(replacement, name)
    return ADDITIONAL.sub(lambda match: f"layers.{int(match[1]) + 1}.", name)


def count_layers(names: Iterable[str]) -> int:
    """Count decoder layers by their tensors: trainers copy `num_hidden_layers` from the target.

    A layer without tensors ends them; tensors of later layers are unknown ones.
    """
    layers = {match[1] for name in names if (match := LAYER.match(name))}
    return next(layer for layer in itertools.count() if str(layer) not in layers)


def _with_one_pre_norm(names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Rename `hidden_norm` of ModelOpt's deeper layers, which is the norm before attention."""
    for name, stored in names.items():
        match = DEEP_NORM.match(name)
        plain = f"{match[1]}.input_layernorm.weight" if match else name
        yield (name if plain in names else plain), stored
