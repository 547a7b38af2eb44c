"""Kinds of drafters, and rounds with a P-EAGLE head against the formulas in float64."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle_aot.artifact import (
    DRAFT_IDS,
    DRAFTERS,
    METHODS,
    PEAGLE_DECODE,
    TARGET_METHODS,
    Manifest,
    methods_of,
)
from eagle_aot.common.errors import ArtifactError, SettingError
from eagle_aot.export import Pair
from eagle_aot.export.drafters.peagle import kind
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters import KINDS, drafter_factory, read_draft_ids
from eagle_aot.runtime_runner.drafters.eagle3 import PEagleDrafter
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.files.artifact import write_artifact
from support.gemma_oracle import VOCAB, random_gemma, random_tokens, save_text_layout
from support.heads.files import HeadShape
from support.heads.peagle import MaskedText, peagle_tensors, write_peagle
from support.heads.reference import ReferenceHead
from support.runner.eager_executor import EagerExecutor
from support.runner.watched import check_rounds

HEAD = HeadShape(vocab=VOCAB, draft_vocab=VOCAB, num_layers=2, norm_before_fc=True)
TAPS = [0, 1, 3]
SHAPES = [
    Shape.chain(1),
    Shape.chain(2),
    Shape.chain(7),
    Shape(1, 4, 4),
    Shape(6, 8, 32),
    Shape.of_paths(((0,), (1,), (2,), (0, 0), (0, 3), (1, 1), (0, 3, 0), (1, 1, 2))),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_drafts_acceptance_and_text_are_those_of_the_formulas(shape: Shape, tmp_path: Path) -> None:
    accepted, calls, rounds = compare(shape, HEAD, tmp_path)
    assert shape.nodes < 32 or accepted, "nothing is accepted"
    assert calls == rounds * min(shape.depth, 2) + 1, "one forward commits, one has all masks"


def test_a_head_of_a_smaller_vocabulary_drafts_target_ids(tmp_path: Path) -> None:
    compare(SHAPES[4], replace(HEAD, draft_vocab=VOCAB // 2), tmp_path)


def compare(shape: Shape, head_shape: HeadShape, tmp_path: Path) -> tuple[int, int, int]:
    """Check all rounds of a text; return how many drafts were accepted, the head's forwards and the
    number of rounds."""
    model = random_gemma()
    target = load_target(save_text_layout(model, tmp_path / "target"), 64)
    head = Checkpoint(write_peagle(tmp_path / "head", head_shape, TAPS))
    draft, _ = kind.load(head, target, torch.float32, CacheSpec(64, torch.float32), None)
    executor = EagerExecutor(Pair(target, draft))
    drafter = PEagleDrafter(executor, executor.artifact, draft.target_ids)
    reference = ReferenceHead(peagle_tensors(head_shape), head_shape)
    slow = MaskedText(model.double(), reference, TAPS, random_tokens(20)[0].tolist())
    stats = check_rounds(executor, drafter, shape, slow, 12)
    return stats.accepted, executor.calls[PEAGLE_DECODE], stats.rounds


KNOWN = "eagle3, p-eagle, gemma4-assistant, mtp, dflash, dflash2, dspark, ngram"


def test_the_drafter_is_that_of_the_manifest(tmp_path: Path) -> None:
    write_artifact(tmp_path)
    assert drafter_factory(Manifest.read(tmp_path), tmp_path) is KINDS["eagle3"]


def test_an_unknown_drafter_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    write_artifact(tmp_path, drafter="telepathy")
    with pytest.raises(ArtifactError, match=f"'telepathy' is not known .* has {KNOWN}: run"):
        load_artifact(tmp_path)


def test_runner_can_be_loaded_with_another_drafter(tmp_path: Path) -> None:
    write_artifact(tmp_path, drafter="telepathy")
    assert drafter_factory(Manifest.read(tmp_path), tmp_path, "ngram") is KINDS["ngram"]


def test_a_drafter_whose_methods_are_missing_is_refused(tmp_path: Path) -> None:
    write_artifact(tmp_path, drafter="ngram", methods=list(TARGET_METHODS))
    with pytest.raises(SettingError, match=r"'eagle3': .* has no draft_decode: .* with 'ngram'"):
        load_artifact(tmp_path, drafter="eagle3")
    with pytest.raises(SettingError, match=f"'telepathy' is not known: there are {KNOWN}$"):
        load_artifact(tmp_path, drafter="telepathy")


def test_each_drafter_has_its_methods() -> None:
    assert list(KINDS) == list(DRAFTERS)
    assert methods_of("eagle3") == methods_of("eagle3", METHODS) == METHODS
    assert methods_of("eagle3", [*METHODS, "draft_prefill"]) == (*METHODS, "draft_prefill")
    assert methods_of("ngram", ["copy_rows", "other"]) == (*TARGET_METHODS, "copy_rows")
    assert methods_of("ngram") == methods_of("telepathy") == TARGET_METHODS


def test_draft_ids_are_read_where_there_are_any(tmp_path: Path) -> None:
    assert read_draft_ids(tmp_path, "cpu") is None
    save_file({"target_ids": torch.tensor([3, 1])}, tmp_path / DRAFT_IDS)
    ids = read_draft_ids(tmp_path, torch.device("cpu"))
    assert ids is not None and ids.tolist() == [3, 1]
