"""The methods of a target that reads images: their graphs, and what is refused before them."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.export import ExportedProgram

from eagle_aot.artifact import DRAFT_DECODE, DRAFT_PREFILL, PREFILL, TARGET_VERIFY
from eagle_aot.common.errors import CheckpointError, EagleError, SettingError, UnsupportedError
from eagle_aot.export import ExportSpec, Pair, pipeline, resolve, resolve_checkpoints, run_check
from eagle_aot.export.encode_image import DECOMPOSITIONS
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.publish.describe import describe_decisions, describe_encoder
from eagle_aot.targets import images, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4.vision import GEMMA4_VISION
from eagle_aot.targets.images import load_images
from support.golden_cases import GOLDEN
from support.image_pair import IMAGE_PROCESSOR
from support.pairs import dummy

BOTH: Literal["text,image"] = "text,image"
LAYERS = 6
"""Of the target, five sliding ones and a full one."""
TOWER = 1
"""Layers of a tower that is as the real one otherwise."""
OPERATOR = "eagle_aot.sdpa_prompt.default"


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, ExportedProgram]]:
    """For a GPU, of the geometry of the 31B and its tower."""
    short = replace(GEMMA4_VISION, num_hidden_layers=TOWER)
    with pytest.MonkeyPatch.context() as patch:
        tokens = images.DUMMIES["gemma4-31b"][1]
        patch.setitem(images.DUMMIES, "gemma4-31b", (short, tokens))
        yield run_check(
            dummy("gemma4-31b", dummy_layers=LAYERS, inputs=BOTH, image_tokens=(280, 1120))
        )


def operators(program: ExportedProgram) -> Counter[str]:
    return Counter(str(n.target) for n in program.graph.nodes if n.op == "call_function")


@pytest.mark.slow
def test_a_prompt_of_the_31b_may_hold_images(programs: dict[str, ExportedProgram]) -> None:
    prefill = programs[PREFILL]
    assert list(prefill.graph_signature.user_inputs)[3:] == ["embeddings", "last_visible"]
    calls = [n for n in prefill.graph.nodes if str(n.target) == OPERATOR]
    visible = [str(call.args[8]) for call in calls if len(call.args) > 8]
    windows = [call.args[6] for call in calls]
    assert windows == [1024] * 5 + [0] and visible == ["last_visible"] * 5


def test_patches_attend_by_the_operator_for_prompts(programs: dict[str, ExportedProgram]) -> None:
    for rows in (280, 1120):
        found = operators(programs[f"encode_image_{rows}"])
        assert found[OPERATOR] == TOWER and not found["aten.bmm.default"]
        assert not set(found) & {str(operator) for operator in DECOMPOSITIONS}


def test_draft_prefill_takes_rows_of_images(programs: dict[str, ExportedProgram]) -> None:
    prefill, decode = (
        programs[m].graph_signature.user_inputs for m in (DRAFT_PREFILL, DRAFT_DECODE)
    )
    assert list(prefill)[-2:] == ["embeddings", "is_image"]
    assert list(decode)[-1] == "features"


def test_no_method_says_what_stands_for_an_image(programs: dict[str, ExportedProgram]) -> None:
    for name in (PREFILL, TARGET_VERIFY):
        assert "target.never" in programs[name].graph_signature.inputs_to_buffers.values()


def test_image_methods_reach_the_compiler_for_a_gpu(
    programs: dict[str, ExportedProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, but for values: those of a graph check are not there."""
    pytest.importorskip("triton", reason="needs triton to import")
    from executorch.backends.cuda.cuda_backend import CudaBackend

    from eagle_aot.export.lowering.cuda import lower

    reached: dict[str, ExportedProgram] = {}

    class CompilerReachedError(Exception):
        """Raised in the compiler's place."""

    def compile_nothing(given: dict[str, list[ExportedProgram]], specs: Any) -> None:
        reached.update({name: program for name, (program,) in given.items()})
        raise CompilerReachedError

    monkeypatch.setattr(CudaBackend, "preprocess_multimethod", compile_nothing)
    name = "encode_image_280"
    with pytest.raises(CompilerReachedError):
        lower({name: programs[name]}, {}, lambda stage: None)
    found = operators(reached[name])
    assert sum(count for one, count in found.items() if "sdpa_prompt" in one) == TOWER
    assert not [one for one in found if "split" in one or "one_hot" in one]


@pytest.mark.parametrize(("options", "words"), [
    ({"inputs": "image"}, "--inputs image: must be one of text, text,image"),
    ({"image_tokens": (280,)}, "--image-tokens goes with --inputs text,image"),
    ({"inputs": BOTH, "image_tokens": (281,)}, "--image-tokens 281: name some of 70, 140"),
    ({"inputs": BOTH, "image_tokens": (280, 280)}, "each once"),
    ({"inputs": BOTH, "max_prefill": 200}, "280 rows must fit into one prefill chunk"),
])  # fmt: skip
def test_options_that_say_nothing_together(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        run_check(dummy("gemma4-31b", dummy_layers=3, max_seq_len=512, **options))


@pytest.mark.parametrize("name", ["gemma4-12b", "qwen3-0.6b"])
def test_a_target_without_a_tower_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"no vision tower is known for {name}"):
        run_check(dummy(name, dummy_layers=3, inputs=BOTH, max_seq_len=512))


def changed(directory: Path, **changes: Any) -> Path:
    """The golden checkpoint with other values in its config.json; those of None are left out."""
    source = GOLDEN / "images" / "one_image"
    config = json.loads((source / "config.json").read_text())
    for path, value in changes.items():
        section, _, key = path.rpartition("__")
        home = config[section] if section else config
        home[key] = value
        if value is None:
            del home[key]
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").symlink_to(source / "model.safetensors")
    return directory


@pytest.mark.parametrize(("changes", "words"), [
    ({"vision_config": None}, "there is no vision_config"),
    ({"model_type": "gemma4_unified"}, "without a tower"),
    ({"vision_config__num_key_value_heads": 2}, "fewer key heads"),
    ({"vision_config__attention_bias": True}, "attention biases"),
    ({"vision_config__hidden_activation": "relu"}, "activation 'relu'"),
    ({"vision_config__rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn'"),
    ({"vision_config__head_dim": 18}, "not a multiple of 4"),
    ({"vision_config__hidden_size": 65}, "config.json says"),
    ({"vision_config__num_hidden_layers": 4}, "is missing"),
    ({"image_token_id": None}, "'image_token_id' is missing"),
    ({"image_token_id": 320}, "320 is outside the vocabulary"),
    ({"boi_token_id": 301}, "are not three ids"),
])  # fmt: skip
def test_a_tower_that_is_not_read_is_refused_by_name(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    directory = changed(tmp_path, **changes)
    target = load_target(GOLDEN / "images" / "one_image", 32)
    with pytest.raises(EagleError, match=words):
        load_images(Checkpoint(directory), target, torch.float32)


def test_damage_to_a_tower_is_found(tmp_path: Path) -> None:
    directory = changed(tmp_path)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    target = load_target(GOLDEN / "images" / "one_image", 32)
    name = "model.vision_tower.std_bias"
    for wrong, words in (
        (tensors | {name: tensors[name] * float("nan")}, "NaN"),
        (tensors | {f"{name}2": tensors[name].clone()}, "unknown tensors"),
    ):
        save_file(wrong, directory / "model.safetensors")
        with pytest.raises(CheckpointError, match=words):
            load_images(Checkpoint(directory), target, torch.float32)
    save_file(
        tensors | {"model.embed_vision.embedding.weight": tensors[name].clone()},
        directory / "model.safetensors",
    )
    load_images(Checkpoint(directory), target, torch.float32)


class Reached(Exception):
    """What comes before lowering is done."""


def test_an_export_for_a_gpu_records_its_tower(
    image_pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}

    def decisions(*given: Any) -> dict[str, Any]:
        found.update(describe_decisions(*given))
        raise Reached

    monkeypatch.setattr(pipeline, "describe_decisions", decisions)
    monkeypatch.setattr(pipeline, "pairing_record", lambda *given: None)
    resolved = resolve(
        ExportSpec(
            target_model="auto",
            target_dir=image_pair[0],
            draft_dir=image_pair[1],
            backend="cuda",
            inputs=BOTH,
            max_seq_len=96,
            output_dir=tmp_path / "artifact",
            check_only=True,  # any machine can trace for CUDA
        )
    )
    caches = CacheSpec(96, torch.bfloat16, chunk=70)
    loaded = load_pair(resolved.checkpoints, torch.bfloat16, caches, images=True)
    parameters = vision_parameters(loaded.pair)
    with pytest.raises(Reached):
        pipeline.export_pair(loaded, resolved)
    assert found["tower"]["parameters"] == parameters


def test_a_processor_of_other_patches_is_refused(image_pair: tuple[Path, Path]) -> None:
    target_dir, head_dir = image_pair
    settings = target_dir / "processor_config.json"
    spec = ExportSpec(target_model="auto", target_dir=target_dir, draft_dir=head_dir)
    caches = CacheSpec(96, torch.float32, chunk=70)
    checkpoints = resolve_checkpoints(spec)
    pair = load_pair(checkpoints, torch.float32, caches, images=True).pair
    assert describe_encoder(pair)["tower"]["parameters"] == vision_parameters(pair)
    assert describe_encoder(load_pair(checkpoints, torch.float32, caches).pair) == {}
    before = settings.read_text()
    try:
        wrong = {**IMAGE_PROCESSOR, "patch_size": 16}
        settings.write_text(json.dumps({"image_processor": wrong}))
        with pytest.raises(CheckpointError, match="patches of 16 pixels"):
            load_pair(resolve_checkpoints(spec), torch.float32, caches, images=True)
    finally:
        settings.write_text(before)


def vision_parameters(pair: Pair) -> int:
    assert pair.vision is not None
    return sum(parameter.numel() for parameter in pair.vision.parameters())
