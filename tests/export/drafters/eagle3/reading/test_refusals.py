"""Heads that cannot be loaded, and their errors of one line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_aot.common.errors import CheckpointError, PairingError, UnsupportedError
from eagle_aot.export import load_draft
from eagle_aot.targets import TapTarget
from support.heads.files import (
    HeadShape,
    Tensors,
    head_tensors,
    safeailab_config,
    write_head,
    write_speculators,
)

SHAPE = HeadShape()
IDS = "eagle_aux_hidden_state_layer_ids"
Q_PROJ = "layers.0.self_attn.q_proj.weight"
K_PROJ = "layers.0.self_attn.k_proj.weight"


@contextmanager
def refused(error: type[Exception], message: str) -> Iterator[None]:
    """Asserts that the block raises exactly `error`, in one line that matches `message`."""
    with pytest.raises(error, match=message) as refusal:
        yield
    assert type(refusal.value) is error and "\n" not in str(refusal.value)


def test_two_spellings_of_one_tensor_are_refused(tmp_path: Path) -> None:
    tensors = head_tensors(SHAPE)
    tensors["model.fc.weight"] = tensors["fc.weight"].clone()
    with pytest.raises(CheckpointError, match=r"fc\.weight' and '.*fc\.weight' are the same"):
        load_draft(flat_head(tmp_path, tensors))


def flat_head(directory: Path, tensors: Tensors | None = None, **changes: Any) -> Path:
    config = safeailab_config(SHAPE, **changes)
    return write_head(directory, head_tensors(SHAPE) if tensors is None else tensors, config)


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"speculators_model_type": "peagle"}, UnsupportedError, "a P-EAGLE head, which"),
    ({"speculators_model_type": "mtp"}, UnsupportedError, "an MTP head, the"),
    ({"transformer_layer_config": None}, CheckpointError, "no transformer_layer_config"),
    ({IDS: "2,3"}, CheckpointError, "not a list of layer indices"),
    ({IDS: [0, True, 3]}, CheckpointError, "not a list of layer indices"),
    ({IDS: [0, 1.0, 3]}, CheckpointError, "not a list of layer indices"),
    ({IDS: [-1, 1, 3]}, CheckpointError, "not a list of layer indices"),
    ({IDS: [3, 1, 2]}, CheckpointError, "is not ascending"),
    ({IDS: [1, 1, 2]}, CheckpointError, "is not ascending"),
    ({IDS: [1, 2]}, CheckpointError, "2 tap layers, but fc takes 3 taps"),
    ({IDS: None}, PairingError, "a target of 4 layers has no default ones"),
    ({IDS: [1, 2, 5]}, PairingError, r"must lie in \[0, 4\].*do not belong together"),
])  # fmt: skip
def test_a_speculators_config_of_another_kind_is_refused(
    tmp_path: Path, target: TapTarget, changes: dict[str, Any], error: type, message: str
) -> None:
    directory = write_speculators(tmp_path, SHAPE, **changes)
    with refused(error, message):
        load_draft(directory, target)


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"eagle_config": {"use_aux_hidden_state": False}}, UnsupportedError, "without taps"),
    ({"eagle_config": {IDS: [0, 1, 3]}}, CheckpointError, "may .*boundaries or layer outputs"),
    ({"rope_scaling": {"rope_type": "longrope"}}, UnsupportedError, "rope type 'longrope'"),
    ({"rope_scaling": {"type": "yarn"}}, CheckpointError, "key 'factor' is missing"),
    ({"rope_parameters": {"type": "linear"}}, CheckpointError, "key 'factor' is missing"),
    ({"rope_parameters": {"type": "dynamic"}}, CheckpointError, "key 'factor' is missing"),
    ({"hidden_act": "relu"}, UnsupportedError, "activation 'relu'"),
    ({"eagle_config": {"eh_proj_before_attn": True}}, UnsupportedError, "eh_proj_before_attn"),
    ({"eagle_config": {"use_mtp_layernorm": True}}, UnsupportedError, "use_mtp_layernorm is"),
    ({"eagle_config": {"next_layer_regular": False}}, UnsupportedError, "regular false is not"),
    ({"eagle_config": {"use_last_layernorm": False}}, CheckpointError, r"but norm\.weight is"),
    (
        {"eagle_config": {"norm_output": True}, "norm_output": False},
        CheckpointError,
        "norm_output is False, eagle_config.norm_output is True",
    ),
    ({"eagle_config": {"parallel_draft_step": 3}}, UnsupportedError, "drafts in parallel"),
    ({"quantization_config": {"quant_method": "nvfp4"}}, UnsupportedError, "is quantized"),
    ({"eagle_config": [1]}, CheckpointError, r"eagle_config is \[1\], expected an object"),
    ({"aux_hidden_states_layer_ids": [1, 2]}, CheckpointError, "2 tap layers, but fc takes 3"),
    ({"num_aux_hidden_states": 4}, CheckpointError, "num_aux_hidden_states is 4, fc takes 3"),
    ({"partial_rotary_factor": 0.5}, UnsupportedError, "partly rotated"),
    (
        {"rope_parameters": {"full_attention": {"rope_type": "llama3"}}},
        UnsupportedError,
        "rope_parameters by kind of layer",
    ),
    ({"rope_scaling": "yarn"}, CheckpointError, "rope_scaling is 'yarn', expected an object"),
    ({"num_attention_heads": 0}, CheckpointError, "num_attention_heads is 0, expected"),
    ({"num_attention_heads": "4"}, CheckpointError, "num_attention_heads is '4', expected"),
    ({"layer_types": ["sliding_attention"]}, UnsupportedError, "sliding attention"),
    ({"hidden_size": 64}, CheckpointError, "hidden_size 64, tensors say 32"),
    ({"intermediate_size": 49}, CheckpointError, "intermediate_size 49, tensors say 48"),
    ({"num_key_value_heads": 4}, CheckpointError, "num_kv_heads 4, tensors say 2"),
    ({"head_dim": 16}, CheckpointError, "head_dim 16, tensors say 8"),
    ({"draft_vocab_size": 41}, CheckpointError, "draft_vocab_size 41, tensors say 40"),
    ({"norm_before_fc": True}, CheckpointError, "norm_before_fc True, tensors say False"),
    ({"fc_norm": True}, CheckpointError, "fc_norm True, tensors say False"),
    ({"num_attention_heads": 5}, CheckpointError, "32 rows for 5 heads"),
    ({"num_attention_heads": 2}, CheckpointError, "tensors say"),
    ({"target_hidden_size": 31}, CheckpointError, "fc reads 96, not a multiple of 31"),
    ({"vocab_size": 97}, CheckpointError, r"embed_tokens\.weight is \[96, 32\]"),
    ({"vocab_size": 2**40}, CheckpointError, "vocab_size is 1099511627776, expected at most"),
    ({"vocab_size": None}, CheckpointError, "key 'vocab_size' is missing"),
    ({"num_attention_heads": None}, CheckpointError, "key 'num_attention_heads' is missing"),
    ({"rms_norm_eps": None}, CheckpointError, "key 'rms_norm_eps' is missing"),
])  # fmt: skip
def test_a_flat_config_that_contradicts_its_tensors_or_our_math_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type, message: str
) -> None:
    with refused(error, message):
        load_draft(flat_head(tmp_path, **changes))


def add(name: str, *shape: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: torch.ones(shape)})


def spoil(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors[name].view(-1)[-1:].fill_(torch.nan)


def drop(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.__delitem__(name)


@pytest.mark.parametrize(("change", "error", "message"), [
    (drop("fc.weight"), UnsupportedError, "not an EAGLE-3 head"),
    (drop("layers.0.hidden_norm.weight"), UnsupportedError, "not an EAGLE-3 head"),
    (add("layers.1.mlp.up_proj.weight", 1), CheckpointError, r"layers\.1\..* is missing"),
    (add("additional_layers.0.x", 1), CheckpointError, r"unknown tensors layers\.1\.x"),
    (add("mask_hidden", 1, 1, 96), UnsupportedError, "a P-EAGLE head"),
    (add("layers.0.self_attn.kv_a_proj_with_mqa.weight", 1), UnsupportedError, "MLA attention"),
    (add("eh_proj.weight", 32, 64), UnsupportedError, "an MTP head"),
    (add("medusa_head.0.weight", 8), UnsupportedError, "Medusa"),
    (add("hot_ids", 8), CheckpointError, "unknown tensors hot_ids"),
    (add("layers.999999999.x", 1), CheckpointError, r"unknown tensors layers\.999999999\.x"),
    (add(f"layers.{'9' * 5000}.x", 1), CheckpointError, r"unknown tensors layers\.9"),
    (add(f"additional_layers.{'9' * 5000}.x", 1), CheckpointError, "unknown tensors additional"),
    (add("layers.0.self_attn.q_norm.weight", 8), CheckpointError, "k_norm.* is missing"),
    (add("fc.weight", 96), CheckpointError, r"fc\.weight has shape \[96\]"),
    (add(Q_PROJ, 32, 32), UnsupportedError, "q_proj reads 32, EAGLE-3 reads 2 x 32"),
    (add(K_PROJ, 24, 64), CheckpointError, "not a multiple of 3 key/value heads"),
    (add(K_PROJ, 17, 64), CheckpointError, r"k_proj has 17 rows, not a multiple of 8"),
    (spoil("fc.weight"), CheckpointError, r"fc\.weight holds NaN or infinite values"),
    (drop("norm.weight"), CheckpointError, r"'norm\.weight' is missing"),
    (drop("layers.0.self_attn.o_proj.weight"), CheckpointError, "o_proj.* is missing"),
    (drop("layers.0.mlp.gate_proj.weight"), CheckpointError, "gate_proj.* is missing"),
    (drop("lm_head.weight"), CheckpointError, "draft_vocab_size 40, tensors say 96"),
    (drop("d2t"), CheckpointError, "d2t is missing from a head with a reduced vocabulary"),
    (add("layers.0.self_attn.q_proj.bias", 32), CheckpointError, "bias' is missing"),
])  # fmt: skip
def test_tensors_that_are_not_an_eagle_3_head_are_refused(
    tmp_path: Path, change: Callable[[Tensors], object], error: type, message: str
) -> None:
    tensors = head_tensors(SHAPE)
    change(tensors)
    with refused(error, message):
        load_draft(flat_head(tmp_path, tensors))


@pytest.mark.parametrize(("slot", "target_id", "error", "message"), [
    (39, 96, PairingError, r"d2t maps to ids \d+\.\.96 outside the vocabulary of 96"),
    (0, -1, PairingError, "outside the vocabulary"),
    (1, None, CheckpointError, "d2t maps two draft ids to one target id"),
])  # fmt: skip
def test_a_map_that_leaves_the_vocabulary_or_repeats_is_refused(
    tmp_path: Path, slot: int, target_id: int | None, error: type, message: str
) -> None:
    tensors = head_tensors(SHAPE)
    ids = tensors["d2t"] + torch.arange(40)
    ids[slot] = ids[0] if target_id is None else target_id
    tensors["d2t"] = ids - torch.arange(40)
    with refused(error, message):
        load_draft(flat_head(tmp_path, tensors))


@pytest.mark.parametrize(("d2t", "message"), [
    (torch.zeros(40, dtype=torch.int64), "d2t is all zero: the map was never filled"),
    (torch.zeros(41, dtype=torch.int64), r"d2t is \[41\]"),
])  # fmt: skip
def test_a_map_that_was_never_filled_is_refused(
    tmp_path: Path, d2t: torch.Tensor, message: str
) -> None:
    with refused(CheckpointError, message):
        load_draft(flat_head(tmp_path, head_tensors(SHAPE) | {"d2t": d2t}))


@pytest.mark.parametrize(("mask", "message"), [
    (torch.zeros(96, dtype=torch.bool), "t2d marks 0 tokens, not the 40 of d2t"),
    (torch.ones(96, dtype=torch.uint8), "t2d marks 96 tokens, not the 40 of d2t"),
    (torch.arange(96) < 40, "t2d marks 40 tokens, not the 40 of d2t"),
    (torch.zeros(95, dtype=torch.bool), r"t2d is torch\.bool \[95\], not a mark for each of 96"),
    (torch.zeros(96), r"t2d is torch\.float32 \[96\], not a mark"),
])  # fmt: skip
def test_a_mask_that_is_not_of_the_map_is_refused(
    tmp_path: Path, mask: torch.Tensor, message: str
) -> None:
    with refused(CheckpointError, message):
        load_draft(flat_head(tmp_path, head_tensors(SHAPE) | {"t2d": mask}))


def test_a_mask_confirms_a_map_of_the_first_tokens(tmp_path: Path) -> None:
    maps = {"d2t": torch.zeros(40, dtype=torch.int64), "t2d": torch.arange(96) < 40}
    draft = load_draft(flat_head(tmp_path, head_tensors(SHAPE) | maps))
    assert draft.target_ids.tolist() == list(range(40))


class Touch:
    """A pickle that writes a file when its code is executed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_code_in_a_pickled_head_is_not_executed(tmp_path: Path) -> None:
    witness = tmp_path / "executed"
    tensors: dict[str, Any] = head_tensors(SHAPE) | {"extra": Touch(witness)}
    directory = write_head(tmp_path, tensors, safeailab_config(SHAPE), pickled=True)
    with pytest.raises(CheckpointError, match="cannot be loaded as plain weights"):
        load_draft(directory)
    assert not witness.exists()
