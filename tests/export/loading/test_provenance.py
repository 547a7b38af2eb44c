"""What a pair's checkpoints hold beside weights: stop ids, the tokenizer, identity."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers.models import WordLevel

from eagle_aot.artifact import TOKENIZER_FILES, CheckpointIdentity
from eagle_aot.common.errors import CheckpointError
from eagle_aot.common.tokenizer import Tokenizer, read_tokenizer
from eagle_aot.export import ExportSpec
from eagle_aot.export.loading import provenance as provenance_module
from eagle_aot.export.loading.checkpoints import ResolvedCheckpoints
from eagle_aot.export.loading.provenance import Provenance, identity, read_eos_ids
from eagle_aot.targets import TARGETS
from support.files.gguf import write_bare_llama
from support.heads.files import HeadShape, write_speculators


def write_configs(directory: Path, generation: Any, config: Any) -> None:
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        if content is not None:
            (directory / name).write_text(json.dumps(content))


@pytest.mark.parametrize(("generation", "config", "expected"), [
    ({"eos_token_id": [1, 106, 50]}, {"eos_token_id": 7}, (1, 106, 50)),
    ({"eos_token_id": 0}, {"eos_token_id": 7}, (0,)),
    ({}, {"eos_token_id": 7}, (7,)),
    ({"eos_token_id": None}, {"eos_token_id": [7, 8]}, (7, 8)),
    (None, {"text_config": {"eos_token_id": 9}}, (9,)),
    (None, {"eos_token_id": [3], "text_config": {"eos_token_id": 9}}, (3,)),
    ({"eos_token_id": []}, {"eos_token_id": 7}, ()),
    (None, {}, ()),
    (None, None, ()),
])  # fmt: skip
def test_stop_ids_come_from_the_generation_config_first(
    tmp_path: Path, generation: Any, config: Any, expected: tuple[int, ...]
) -> None:
    write_configs(tmp_path, generation, config)
    assert read_eos_ids(tmp_path) == expected


@pytest.mark.parametrize(("eos", "config", "expected"), [
    ("<|im_end|>", {"eos_token_id": 1}, (1, 2)),
    ("<|im_end|>", {}, (2,)),
    ("</s>", {"eos_token_id": [1]}, (1,)),
    (None, {"eos_token_id": 1}, (1,)),
])  # fmt: skip
def test_the_eos_token_of_the_tokenizer_ends_a_text_too(
    tmp_path: Path, eos: str | None, config: Any, expected: tuple[int, ...]
) -> None:
    write_configs(tmp_path, None, config)
    vocabulary = {"a": 0, "</s>": 1, "<|im_end|>": 2}
    tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="a")).save(
        str(tmp_path / "tokenizer.json")
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_eos_ids(tmp_path) == expected


@pytest.mark.parametrize("is_readable", [False, True])
def test_a_tokenizer_is_converted_once_and_read_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    assert TARGETS["gemma4-tiny"].target_dir is not None
    tokenizer = read_tokenizer(TARGETS["gemma4-tiny"].target_dir)
    converted: list[Path] = []

    def convert(directory: Path) -> Tokenizer:
        converted.append(directory)
        return tokenizer

    monkeypatch.setattr(provenance_module, "convert_tokenizer", convert)
    monkeypatch.setattr(provenance_module, "read_tokenizer", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    if is_readable:
        shutil.copytree(TARGETS["gemma4-tiny"].target_dir, tmp_path, dirs_exist_ok=True)
    provenance = Provenance(tmp_path, None, is_dummy=False)
    eos = tokenizer.backend.token_to_id(tokenizer.special_tokens["eos_token"])
    assert eos in provenance.eos_ids
    assert provenance.tokenizer is tokenizer
    provenance.check_tokenizer()
    assert converted == [tmp_path]


def test_without_a_target_directory_nothing_stops() -> None:
    assert read_eos_ids(None) == ()


@pytest.mark.parametrize("value", ["</s>", [1, "2"], [True], -1, 1.0, {"id": 1}])
def test_stop_ids_of_another_kind_are_refused(tmp_path: Path, value: Any) -> None:
    write_configs(tmp_path, {"eos_token_id": value}, None)
    with pytest.raises(
        CheckpointError, match=r"generation_config\.json: eos_token_id .* not a list"
    ):
        read_eos_ids(tmp_path)


def test_the_tokenizer_is_copied_and_nothing_else(tmp_path: Path) -> None:
    target_dir = TARGETS["gemma4-tiny"].target_dir
    assert target_dir is not None
    ResolvedCheckpoints(
        ExportSpec(target_model="gemma4-tiny", target_dir=target_dir)
    ).provenance.copy_tokenizer(tmp_path)
    copied = {path.name for path in tmp_path.iterdir()}
    assert {"tokenizer.json", "chat_template.jinja", "generation_config.json"} <= copied
    assert copied <= set(TOKENIZER_FILES)
    assert all((tmp_path / n).read_bytes() == (target_dir / n).read_bytes() for n in copied)


def test_a_bare_gguf_brings_its_tokenizer_and_stop_ids(tmp_path: Path) -> None:
    file, artifact = tmp_path / "model.gguf", tmp_path / "artifact"
    artifact.mkdir()
    write_bare_llama(file)
    write_configs(tmp_path, {"eos_token_id": 7}, None)  # beside it, and not read
    for named in (file, tmp_path):
        provenance = ResolvedCheckpoints(
            ExportSpec(target_model="llama", target_dir=named)
        ).provenance
        assert provenance.eos_ids == (1,)
        assert list(provenance.target.files) == ["model.gguf"]
        provenance.check_tokenizer()
    provenance.copy_tokenizer(artifact)
    copied = {path.name for path in artifact.iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} < copied
    assert read_tokenizer(artifact).encode("the") == provenance.tokenizer.encode("the")


@pytest.mark.parametrize("present", [[], ["tokenizer_config.json", "chat_template.jinja"]])
def test_a_target_without_a_tokenizer_is_refused(tmp_path: Path, present: list[str]) -> None:
    (tmp_path / "artifact").mkdir()
    for name in present:
        (tmp_path / name).write_text("{}")
    checkpoints = ResolvedCheckpoints(ExportSpec(target_model="gemma4-tiny", target_dir=tmp_path))
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json or tokenizer\.model"):
        checkpoints.provenance.copy_tokenizer(tmp_path / "artifact")
    assert not list((tmp_path / "artifact").iterdir())
    ResolvedCheckpoints(ExportSpec(target_model="gemma4-31b")).provenance.copy_tokenizer(
        tmp_path / "artifact"
    )


def test_a_checkpoints_identity_follows_its_bytes_not_its_place(tmp_path: Path) -> None:
    first = identity(write_speculators(tmp_path / "a" / "head", HeadShape()))
    second = identity(write_speculators(tmp_path / "b" / "head", HeadShape()))
    other = identity(write_speculators(tmp_path / "c" / "head", HeadShape(seed=1)))
    assert first == second and first.directory == "head"
    assert set(first.files) == {"config.json", "model.safetensors"}
    changed = {name for name, record in other.files.items() if record != first.files[name]}
    assert changed == {"model.safetensors"}
    nothing = CheckpointIdentity(directory=None, files={})
    dummy = Provenance(None, tmp_path / "a" / "head", is_dummy=True)
    assert identity(None) == dummy.draft == dummy.target == nothing


def test_provenance_is_read_once_from_its_files(tmp_path: Path) -> None:
    target, head = (write_speculators(tmp_path / n, HeadShape()) for n in ("target", "head"))
    provenance = ResolvedCheckpoints(
        ExportSpec(target_model="qwen3", target_dir=target, draft_dir=head)
    ).provenance
    write_configs(target, {"eos_token_id": 3}, None)
    found = provenance.eos_ids, provenance.draft
    shutil.rmtree(target)
    shutil.rmtree(head)
    assert (provenance.eos_ids, provenance.draft) == found
    assert found[0] == (3,) and "model.safetensors" in found[1].files
