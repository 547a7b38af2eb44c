"""Read an EAGLE-3 head from disk: the vLLM-speculators and the SafeAILab layouts.

Shapes decide the geometry; the config must agree with them. Loading is strict: a tensor that is
missing, unknown or of the wrong shape is an error, never skipped.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_aot.errors import CheckpointError, PairingError, UnsupportedError
from eagle_aot.export.draft_config import DraftConfig
from eagle_aot.export.draft_head import ACTIVATIONS, Eagle3Draft
from eagle_aot.export.tap_layers import default_tap_layers, flat_tap_layers, speculators_tap_layers
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.tap_decoder import check_tap_layers
from eagle_aot.targets.decoder.weights import assign, checked

RENAMES = (
    (re.compile(r"^(draft_model|eagle_module|module)\."), ""),
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
)
UNUSED = re.compile(r"^t2d$|^verifier_|rotary_emb|inv_freq")


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """A config.json, whatever its layout: one flat view of the layer, one of the options."""

    layer: Mapping[str, Any]
    options: Mapping[str, Any]
    tap_layers: tuple[int, ...]


def load_draft(
    path: str | Path,
    target: TapTarget | None = None,
    max_seq_len: int = 4096,
    dtype: torch.dtype = torch.float32,
) -> Eagle3Draft:
    """The head in directory `path`, on the host.

    `target` supplies what the head shares with it: the embedding of a head that has none (its raw
    rows), the output table of a full-vocabulary head that has none, and the layer count from which
    unnamed tap layers follow. Raises CheckpointError for a damaged or contradictory checkpoint,
    UnsupportedError for a head that is not EAGLE-3 or uses options this version does not know, and
    PairingError when the head cannot belong to `target`.
    """
    checkpoint = Checkpoint(path)
    num_layers = None if target is None else target.num_hidden_layers
    head = read_head_config(checkpoint, num_layers)
    names = canonical_names(checkpoint)
    config = draft_config(checkpoint, head, names, num_layers)
    draft = Eagle3Draft(config, max_seq_len, dtype)
    shared = _share_with_target(draft, names, target)
    _fill(draft, checkpoint, names, shared, dtype)
    draft.target_ids = _target_ids(checkpoint, names, config)
    return draft.eval()


def read_head_config(checkpoint: Checkpoint, num_layers: int | None) -> HeadConfig:
    """Flatten config.json. Raises UnsupportedError for another algorithm's head."""
    config = checkpoint.config
    kind = config.get("speculators_model_type")
    if kind == "eagle3":
        layer = config.get("transformer_layer_config")
        if not isinstance(layer, dict):
            raise CheckpointError(f"{checkpoint.directory}: no transformer_layer_config")
        return HeadConfig(layer, config, speculators_tap_layers(config))
    if kind is not None:
        raise UnsupportedError(f"{checkpoint.directory}: a {kind!r} speculator, not EAGLE-3")
    nested = config.get("eagle_config") or {}
    if nested.get("use_aux_hidden_state") is False:
        raise UnsupportedError(f"{checkpoint.directory}: a head without taps, not EAGLE-3")
    return HeadConfig(config, config, flat_tap_layers(config, num_layers))


def canonical_names(checkpoint: Checkpoint) -> dict[str, str]:
    """Canonical tensor name -> name in this checkpoint, unused tensors left out.

    Raises UnsupportedError where the tensors are not those of a single-layer EAGLE-3 head.
    """
    names: dict[str, str] = {}
    for stored in checkpoint.names():
        name = stored
        for pattern, replacement in RENAMES:
            name = pattern.sub(replacement, name)
        if not UNUSED.search(name):
            names[name] = stored
    where = checkpoint.directory
    if any(name.startswith(("layers.1.", "additional_layers.")) for name in names):
        raise UnsupportedError(f"{where}: more than one decoder layer")
    if "fc.weight" not in names or "layers.0.hidden_norm.weight" not in names:
        raise UnsupportedError(f"{where}: no fc.weight or hidden_norm.weight: not an EAGLE-3 head")
    return names


def draft_config(
    checkpoint: Checkpoint, head: HeadConfig, names: Mapping[str, str], num_layers: int | None
) -> DraftConfig:
    """Geometry from the tensors' shapes, options from the config, each checked by the other."""
    layer, options, where = head.layer, head.options, checkpoint.directory

    def rows_columns(name: str) -> tuple[int, int]:
        shape = checkpoint.shape(names.get(name, name))
        if len(shape) != 2:
            raise CheckpointError(f"{where}: {name} has shape {list(shape)}, expected two sizes")
        return shape[0], shape[1]

    hidden, taps_width = rows_columns("fc.weight")
    q_rows, q_columns = rows_columns("layers.0.self_attn.q_proj.weight")
    if q_columns != 2 * hidden:
        raise UnsupportedError(f"{where}: q_proj reads {q_columns}, EAGLE-3 reads 2 x {hidden}")
    num_heads = _need(layer, "num_attention_heads", where)
    if q_rows % num_heads:
        raise CheckpointError(f"{where}: q_proj has {q_rows} rows for {num_heads} heads")
    head_dim = q_rows // num_heads
    target_hidden = options.get("target_hidden_size") or hidden
    if taps_width % target_hidden:
        raise CheckpointError(f"{where}: fc reads {taps_width}, not a multiple of {target_hidden}")
    num_taps = taps_width // target_hidden
    vocab_size = _need(layer, "vocab_size", where)
    draft_vocab = rows_columns("lm_head.weight")[0] if "lm_head.weight" in names else vocab_size
    config = DraftConfig(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        num_taps=num_taps,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab,
        intermediate_size=rows_columns("layers.0.mlp.gate_proj.weight")[0],
        num_heads=num_heads,
        num_kv_heads=rows_columns("layers.0.self_attn.k_proj.weight")[0] // head_dim,
        head_dim=head_dim,
        rms_norm_eps=_need(layer, "rms_norm_eps", where),
        rope_theta=_rope_theta(layer, where),
        hidden_act=_activation(layer, where),
        norm_before_residual=bool(options.get("norm_before_residual", False)),
        norm_before_fc="input_norm.weight" in names,
        fc_norm="fc_norm.0.weight" in names,
        norm_output=_norm_output(options),
        attention_bias="layers.0.self_attn.q_proj.bias" in names,
        mlp_bias="layers.0.mlp.gate_proj.bias" in names,
        fc_bias="fc.bias" in names,
        tap_layers=_tap_layers(head.tap_layers, num_taps, num_layers, where),
        default_chain_len=_chain_len(options),
    )
    _check_agreement(config, layer, options, where)
    return config


def _tap_layers(
    named: tuple[int, ...], num_taps: int, num_layers: int | None, where: Path
) -> tuple[int, ...]:
    if named and len(named) != num_taps:
        raise CheckpointError(f"{where}: {len(named)} tap layers, but fc takes {num_taps} taps")
    if num_layers is None:
        return named
    taps = named or default_tap_layers(num_layers)
    if len(taps) != num_taps:
        raise CheckpointError(f"{where}: fc takes {num_taps} taps and the config names none")
    try:
        check_tap_layers(taps, num_layers)
    except ValueError as error:
        raise PairingError(f"{where}: {error}: head and target do not belong together") from error
    return taps


def _check_agreement(
    config: DraftConfig, layer: Mapping[str, Any], options: Mapping[str, Any], where: Path
) -> None:
    stated = {
        "hidden_size": layer.get("hidden_size"),
        "intermediate_size": layer.get("intermediate_size"),
        "num_kv_heads": layer.get("num_key_value_heads"),
        "head_dim": layer.get("head_dim"),
        "draft_vocab_size": options.get("draft_vocab_size"),
        "norm_before_fc": options.get("norm_before_fc"),
        "fc_norm": options.get("fc_norm"),
    }
    for name, value in stated.items():
        found = getattr(config, name)
        if value is not None and value != found:
            raise CheckpointError(f"{where}: config.json says {name} {value}, tensors say {found}")
    if "sliding_attention" in (layer.get("layer_types") or ()):
        raise UnsupportedError(f"{where}: a draft layer with sliding attention")


def _rope_theta(layer: Mapping[str, Any], where: Path) -> float:
    """The base of the rotary angles: 10000 where nothing is said, whatever the target uses."""
    parameters = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UnsupportedError(f"{where}: rope type {kind!r} in a draft head")
    return float(parameters.get("rope_theta") or layer.get("rope_theta") or 10000.0)


def _activation(layer: Mapping[str, Any], where: Path) -> str:
    name: str = layer.get("hidden_act", "silu")
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"{where}: activation {name!r} in a draft head")
    return name


def _norm_output(options: Mapping[str, Any]) -> bool:
    """Whether the recurrent feature is post-norm; a flat file's flag of that name is not this one.

    SpecForge writes `norm_output` for the norm before its lm_head and always trains with pre-norm
    feedback; only speculators files mean the feedback.
    """
    return "speculators_model_type" in options and bool(options.get("norm_output", False))


def _chain_len(options: Mapping[str, Any]) -> int | None:
    methods = (options.get("speculators_config") or {}).get("proposal_methods") or [{}]
    value = methods[0].get("speculative_tokens")
    return value if isinstance(value, int) else None


def _share_with_target(
    draft: Eagle3Draft, names: Mapping[str, str], target: TapTarget | None
) -> dict[str, Tensor]:
    """Tables that the head lacks, from the target, by parameter name."""
    shared: dict[str, Tensor] = {}
    if "embed_tokens.weight" not in names:
        draft.has_embedding = target is not None
        if target is not None:
            shared["embed_tokens.weight"] = target.embed_weight
    if "lm_head.weight" not in names:
        if target is None:
            raise CheckpointError("the head has no lm_head.weight: load it with its target")
        shared["lm_head.weight"] = target.lm_head_weight
    parameters = draft.state_dict()
    for name, table in shared.items():
        if table.shape != parameters[name].shape:
            raise PairingError(
                f"the head has no {name} and the target's is {list(table.shape)}, "
                f"not {list(parameters[name].shape)}"
            )
    return shared


def _fill(
    draft: Eagle3Draft,
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    shared: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> None:
    wanted = {name: t.shape for name, t in draft.state_dict().items() if name != "target_ids"}
    unknown = sorted(set(names) - set(wanted) - {"d2t"})
    if unknown:
        raise CheckpointError(f"{checkpoint.directory}: unknown tensors {', '.join(unknown[:5])}")
    for name, shape in wanted.items():
        if name in shared:
            tensor = shared[name]
        elif name == "embed_tokens.weight" and not draft.has_embedding:
            continue
        else:
            tensor = checked(checkpoint, names.get(name, name), shape)
        assign(draft, name, tensor.detach().to(dtype))


def _target_ids(checkpoint: Checkpoint, names: Mapping[str, str], config: DraftConfig) -> Tensor:
    """Absolute target id of every draft id; d2t holds offsets, in no particular order."""
    where, size = checkpoint.directory, config.draft_vocab_size
    if "d2t" not in names:
        if size != config.vocab_size:
            raise CheckpointError(f"{where}: d2t is missing from a head with a reduced vocabulary")
        return torch.arange(size)
    offsets = checked(checkpoint, names["d2t"], torch.Size([size])).long()
    if size < config.vocab_size and not offsets.any():
        raise CheckpointError(f"{where}: d2t is all zero: the map was never filled")
    ids = torch.arange(size) + offsets
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        raise PairingError(
            f"{where}: d2t maps to ids {int(ids.min())}..{int(ids.max())} outside the vocabulary "
            f"of {config.vocab_size}"
        )
    if len(ids.unique()) != size:
        raise CheckpointError(f"{where}: d2t maps two draft ids to one target id")
    return ids


def _need(section: Mapping[str, Any], key: str, where: Path) -> Any:
    if section.get(key) is None:
        raise CheckpointError(f"{where}/config.json: key {key!r} is missing")
    return section[key]
