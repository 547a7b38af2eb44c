"""Write and read a head in the layout of vLLM's speculators: config.json and model.safetensors.

Besides the head's parameters, by their own names, a head with a vocabulary of its own has `d2t`
int64 [Vd], the offset from a draft id to its target id, and `t2d` bool [V], which target ids can be
drafted. A P-EAGLE head has `mask_hidden` [1, 1, num_taps * Ht]; a head with masks names their token
as `mask_token_id`. Linears, and the tables of a DFlash2 head's selector, may be stored in fewer
bits, as torchao flattens them; loading a head makes them dense again.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from executorch.extension.llm.export.quant import QuantConfig, quantize_weight
from torch import Tensor
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

from eagle_aot.common.tensors import save_tensors
from eagle_aot.export.drafters.registry import name_of_kind
from eagle_aot.lab.training.heads.draft import HeadDraft
from eagle_aot.lab.training.heads.kinds import KINDS, kind_of
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint, read_config

SPECULATORS_VERSION = "0.3.0"
EMBEDDING = "embed_tokens.weight"
WEIGHT = ".weight"
BF16, INT8 = "bf16", "int8"
QUANTS = {
    INT8: QuantConfig(bits=8, group_size=64, symmetric=True, method="min_max"),
    "int4": QuantConfig(bits=4, group_size=32, symmetric=False, method="min_max"),
}
FORMATS = (BF16, *QUANTS)
"""How the linears of a head are stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verifier:
    """What a head's config records about its target."""

    name: str
    architectures: list[str] | None
    max_position_embeddings: int

    @classmethod
    def read(cls, target_dir: Path, name: str) -> "Verifier":
        """Read it from the target's own config."""
        config = read_config(target_dir)
        text = config.section("text_config") if config.has("text_config") else config
        return cls(
            name=name,
            architectures=config.values.get("architectures"),
            max_position_embeddings=text.count("max_position_embeddings"),
        )


def save_head(
    draft: HeadDraft,
    verifier: Verifier,
    chain_len: int,
    folder: Path,
    *,
    head_format: str = BF16,
    with_embedding: bool = True,
) -> None:
    """Write the head; `chain_len` is its default chain length, if blocks do not decide it.

    A head without an embedding uses its target's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(draft, verifier, draft.default_chain_len or chain_len)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = kind_of(draft).tensors(draft)
    if not with_embedding:
        del tensors[EMBEDDING]
    tensors = {name: _stored(tensor) for name, tensor in tensors.items()}
    metadata = {"format": "pt"}
    if head_format in QUANTS:
        tensors, described = flatten_tensor_state_dict(
            tensors | _quantised(tensors, QUANTS[head_format])
        )
        metadata |= described
    save_tensors(tensors, folder / "model.safetensors", metadata=metadata)


def read_head(folder: Path, target: TapTarget) -> HeadDraft:
    """Load a head that was written here; `target` has the tables that its file lacks."""
    checkpoint = Checkpoint(folder)
    return KINDS[name_of_kind(checkpoint)].read(checkpoint, target)


def _stored(tensor: Tensor) -> Tensor:
    """Return a tensor [...] on the host, floats as bfloat16."""
    host = tensor.detach().cpu()
    return host.bfloat16() if host.is_floating_point() else host


def _quantised(tensors: dict[str, Tensor], config: QuantConfig) -> dict[str, Tensor]:
    """Return the quantised weights of linears whose columns are more than one whole group, and the
    tables of a selector, which have no ".weight": each row as one group of INT8."""
    weights = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or name == EMBEDDING:
            continue
        columns = tensor.shape[1]
        if not name.endswith(WEIGHT):
            weights[name] = quantize_weight(tensor, replace(QUANTS[INT8], group_size=columns))
        elif columns % config.group_size == 0 and columns > config.group_size:
            weights[name] = quantize_weight(tensor, config)
    return weights


def _config(draft: HeadDraft, verifier: Verifier, chain_len: int) -> dict[str, Any]:
    own = kind_of(draft).config(draft, verifier.max_position_embeddings)
    return {
        **own,
        "speculators_version": SPECULATORS_VERSION,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "speculators_config": {
            "algorithm": own["speculators_model_type"],
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": chain_len}],
            "verifier": {"name_or_path": verifier.name, "architectures": verifier.architectures},
        },
    }
