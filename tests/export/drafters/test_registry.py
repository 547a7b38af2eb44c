"""Which kind of drafter a checkpoint is, and what every kind can be asked."""

from pathlib import Path

import pytest
import torch

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export import ExportSpec, load_pair, resolve_checkpoints
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.protocol import DrafterKind, HeadKind
from eagle_aot.export.drafters.registry import HEADS, KINDS, kind_of, kind_of_checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.heads.files import HeadShape, write_speculators


def test_a_checkpoint_has_a_kind_and_so_has_what_it_loads_as(
    random_pair: tuple[Path, Path],
) -> None:
    kind = kind_of_checkpoint(HeadCheckpoint(random_pair[1]))
    pair = load_pair(
        resolve_checkpoints(
            ExportSpec(target_model="auto", target_dir=random_pair[0], draft_dir=random_pair[1])
        ),
        torch.float32,
        CacheSpec(32, torch.float32),
    ).pair
    assert kind_of(pair.draft) is kind is KINDS["eagle3"] is HEADS["eagle3"]
    assert pair.draft.kind == "eagle3"
    assert len(pair.target.tap_layers) == len(pair.draft.tap_layers) == 3


def test_a_target_alone_is_tapped_nowhere(random_pair: tuple[Path, Path]) -> None:
    checkpoints = resolve_checkpoints(ExportSpec(target_model="auto", target_dir=random_pair[0]))
    loaded = load_pair(checkpoints, torch.float32, CacheSpec(32, torch.float32))
    pair = loaded.pair
    assert kind_of(pair.draft) is KINDS["ngram"] and "ngram" not in HEADS
    assert pair.target.tap_layers == pair.draft.tap_layers == ()
    assert loaded.reading == {}
    assert not list(pair.draft.parameters()) and not pair.draft.state_dict()


def questions(protocol: type) -> set[str]:
    return {question for question in vars(protocol) if not question.startswith("_")}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_answers_all_questions(name: str) -> None:
    assert questions(DrafterKind) == {"without_checkpoint", "methods"}
    assert questions(HeadKind) == {"claims", "load", "describe", "report", "readings"}
    asked = questions(DrafterKind) | (questions(HeadKind) if name in HEADS else set())
    assert all(callable(getattr(KINDS[name], question)) for question in asked)


def test_what_no_kind_reads_is_refused_by_name(tmp_path: Path) -> None:
    head = write_speculators(tmp_path, HeadShape())
    config = head / "config.json"
    config.write_text(config.read_text().replace('"eagle3"', '"medusa"'))
    checkpoint = HeadCheckpoint(head)
    with pytest.raises(UnsupportedError, match="a set of Medusa heads"):
        kind_of_checkpoint(checkpoint).describe(checkpoint, None, None)
