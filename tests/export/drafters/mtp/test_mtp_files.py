"""How an MTP layer's files are found and read, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import nn

from eagle_aot.common.errors import EagleError
from eagle_aot.export import ExportSpec, LoadedPair
from eagle_aot.export.drafters.mtp.model import MtpDraft
from eagle_aot.export.drafters.registry import HEADS, kind_of_checkpoint
from eagle_aot.export.inspect_cli import main
from eagle_aot.export.loading import locate
from eagle_aot.export.plan import plan_export
from eagle_aot.targets import TARGETS
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.int4 import Int4Linear
from support.checkpoint_edits import Tensors, edit_config, edit_tensors
from support.files.compressed_tensors import pack, scheme_with
from support.heads.mtp import random_mtp, save_mtp
from support.pairs import load
from support.random_pair import qwen3_5

FC, GATE = "mtp.fc.weight", "mtp.layers.0.mlp.gate_proj"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = qwen3_5(vocab_size=96)
    return save_mtp(tmp_path_factory.mktemp("mtp"), model, random_mtp(model))


@pytest.fixture
def target(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "target")


def loaded(target_dir: Path, **options: Any) -> LoadedPair:
    return load(
        ExportSpec(target_model="auto", target_dir=target_dir, backend="xnnpack", **options)
    )


def layer_of(pair: LoadedPair) -> nn.Module:
    assert isinstance(pair.pair.draft, MtpDraft)
    return pair.pair.draft.mtp


def without_layer(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith("mtp.")]:
        del tensors[name]


@pytest.mark.parametrize("drafter", ["auto", "mtp"])
def test_the_layer_of_the_targets_own_checkpoint_drafts(drafter: Any, target: Path) -> None:
    pair = loaded(target, drafter=drafter)
    assert pair.pair.draft.kind == "mtp" and pair.pair.draft.tap_layers == (3,)
    assert kind_of_checkpoint(Checkpoint(target)) is HEADS["mtp"]
    assert pair.reading["layout"] == {"value": "MTP layer", "source": "tensors mtp.*"}
    provenance = pair.checkpoints.provenance
    assert provenance.draft.files == {} and provenance.target.files
    planned = plan_export(ExportSpec(target_model=str(target), drafter=drafter))
    assert planned is not None and planned.drafter == "mtp"


def test_another_drafter_can_be_named(target: Path, random_pair: tuple[Path, Path]) -> None:
    assert loaded(target, drafter="ngram").pair.draft.kind == "ngram"
    edit_tensors(target, without_layer)
    edit_config(target, mtp_num_hidden_layers=None)
    assert loaded(target).pair.draft.kind == "ngram"


def test_the_layer_may_be_in_another_checkpoint(saved: Path, target: Path) -> None:
    """A target saved without it drafts with the layer of the publisher's."""
    edit_tensors(target, without_layer)
    found, own = loaded(target, draft_dir=saved), loaded(saved)
    assert found.pair.draft.kind == "mtp" and found.checkpoints.provenance.draft.files
    for name, tensor in layer_of(own).state_dict().items():
        assert torch.equal(layer_of(found).state_dict()[name], tensor), name
    message = "mtp_num_hidden_layers is 1, but no tensor is called mtp.*: it was saved without"
    with pytest.raises(EagleError, match=message.replace("*", r"\*")):
        loaded(target, drafter="mtp")


def test_a_model_that_also_reads_images_has_it_under_other_names(saved: Path, target: Path) -> None:
    text = json.loads((target / "config.json").read_text())
    whole = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": False}
    (target / "config.json").write_text(json.dumps(whole))
    edit_tensors(target, lambda tensors: rename(tensors, "model.", "model.language_model."))
    wanted = layer_of(loaded(saved)).state_dict()
    assert torch.equal(layer_of(loaded(target)).state_dict()["fc.weight"], wanted["fc.weight"])
    edit_tensors(target, lambda tensors: rename(tensors, "mtp.", "model.mtp."))
    description = HEADS["mtp"].describe(Checkpoint(target), None, None)
    assert description["layout"]["source"] == "tensors model.mtp.*"


def rename(tensors: Tensors, old: str, new: str) -> None:
    for name in [name for name in tensors if name.startswith(old)]:
        tensors[name.replace(old, new, 1)] = tensors.pop(name)


def test_a_layer_in_int4_is_read_as_it_is(target: Path) -> None:
    """Where the checkpoint has its linears in fewer bits, and others are dense."""
    stored = load_file(target / "model.safetensors")
    packed = pack(stored.pop(f"{GATE}.weight"), 32, True, torch.float32)
    stored |= {f"{GATE}.{name}": tensor.contiguous() for name, tensor in packed.items()}
    save_file(stored, target / "model.safetensors")
    scheme = scheme_with(32, True).weights
    assert scheme is not None
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme.model_dump(mode="json")}}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    edit_config(target, quantization_config=config | {"config_groups": groups, "ignore": []})
    layer = layer_of(loaded(target))
    kinds = {name: type(m) for name, m in layer.named_modules() if name.endswith("_proj")}
    assert kinds.pop(GATE.removeprefix("mtp.")) is Int4Linear and set(kinds.values()) == {nn.Linear}


def test_it_is_described(target: Path) -> None:
    arguments = ["draft", str(target), "--target-dir", str(target)]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["drafter"] == "mtp" and found["sizes"]["hidden_size"] == 64
    assert found["state"]["value"].startswith("after the target's final norm")
    lines = CliRunner().invoke(main, arguments).stdout.splitlines()
    assert any(line.startswith("layout") and "tensors mtp.*" in line for line in lines)


def put(name: str, *shape: int) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: torch.ones(shape)})


@pytest.mark.parametrize(("config", "change", "line"), [
    ({}, without_layer, "no MTP layer: mtp_num_hidden_layers is 1, but no tensor is called"),
    ({"mtp_num_hidden_layers": None}, without_layer, r"no MTP layer: no tensor is called mtp.\*$"),
    ({"mtp_num_hidden_layers": 2}, None, "several MTP layers: one is read"),
    ({}, put("mtp.layers.1.mlp.down_proj.weight", 64, 64), "several MTP layers: one is read"),
    ({"mtp_use_dedicated_embeddings": True}, None, "an MTP layer with tables of its own"),
    ({}, put("mtp.embed_tokens.weight", 96, 64), "an MTP layer with tables of its own"),
    ({}, put("mtp.other.weight", 3), "unknown tensors mtp.other.weight"),
    ({}, put(FC, 64, 64), r"fc.weight is \[64, 64\], config.json says \[64, 128\]"),
    ({}, lambda tensors: tensors.pop(FC), "tensor 'mtp.fc.weight' is missing"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(
    config: dict[str, Any], change: Callable[[Tensors], Any] | None, line: str, target: Path
) -> None:
    edit_config(target, **config)
    if change is not None:
        edit_tensors(target, change)
    with pytest.raises(EagleError, match=line) as found:
        loaded(target, drafter="mtp")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("changes", "line"), [
    ({"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
     "the target has 3 layers, the MTP layer was made for one of 2"),
    ({"hidden_size": 32}, "hidden size is 64, the head was made for 32"),
    ({"vocab_size": 95}, "vocabulary is 96, the head was made for 95"),
    ({"model_type": "qwen3_next"}, "no MTP layer that is read: model_type 'qwen3_next', known: "),
])  # fmt: skip
def test_the_layer_of_another_target_is_refused(
    changes: dict[str, Any], line: str, saved: Path, target: Path
) -> None:
    edit_config(target, **changes)
    with pytest.raises(EagleError, match=line):
        loaded(saved, draft_dir=target, drafter="mtp")


def test_other_targets_and_taps_are_refused(
    saved: Path, gemma: Path, qwen3_pair: tuple[Path, Path]
) -> None:
    with pytest.raises(EagleError, match=r"made for a Qwen3\.5, and the target is none"):
        loaded(gemma, draft_dir=saved)
    with pytest.raises(EagleError, match="no MTP layer that is read: model_type 'qwen3'"):
        loaded(qwen3_pair[0], drafter="mtp")
    with pytest.raises(EagleError, match="--tap-layers: an MTP layer reads the target's last"):
        loaded(saved, tap_layers=(1,))
    dummy = ExportSpec(target_model="gemma4-tiny", load_format="dummy", drafter="mtp")
    with pytest.raises(EagleError, match="--drafter mtp: no such layer is known for targets of"):
        load(dummy)


def test_a_registered_target_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "plan_checkpoint", str)
    for drafter in ("auto", "mtp"):
        options: Any = {"target_model": "qwen3.5-27b", "drafter": drafter}
        downloads: Any = locate.plan_downloads(ExportSpec(**options))[1]
        assert downloads == {"target_dir": "Qwen/Qwen3.5-27B"}
    head = "dflash z-lab/Qwen3.5-27B-DFlash"
    assert TARGETS["qwen3.5-27b"].summary == f"Qwen/Qwen3.5-27B; its own MTP layer, {head}"
