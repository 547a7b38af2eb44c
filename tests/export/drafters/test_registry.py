"""Recognising the kind of a drafter's checkpoint, and the interface of every kind."""

from pathlib import Path

import pytest
from torch import nn

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export import ExportSpec
from eagle_aot.export.drafters.protocol import DrafterKind, HeadKind
from eagle_aot.export.drafters.registry import HEADS, KINDS, kind_of, kind_of_checkpoint
from eagle_aot.targets.checkpoint import Checkpoint
from support.heads.files import HeadShape, write_speculators
from support.pairs import head_of, load, target_of


def test_checkpoint_and_loaded_head_have_the_same_kind(random_pair: tuple[Path, Path]) -> None:
    kind = kind_of_checkpoint(Checkpoint(random_pair[1]))
    spec = ExportSpec(target_model="auto", target_dir=random_pair[0], draft_dir=random_pair[1])
    pair = load(spec).pair
    assert kind_of(pair.draft) is kind is KINDS["eagle3"] is HEADS["eagle3"]
    assert pair.draft.kind == "eagle3"
    assert target_of(pair).tap_layers == pair.draft.tap_layers == head_of(pair).config.tap_layers
    assert len(pair.draft.tap_layers) == 3


def test_a_target_alone_is_tapped_nowhere(random_pair: tuple[Path, Path]) -> None:
    loaded = load(ExportSpec(target_model="auto", target_dir=random_pair[0]))
    pair = loaded.pair
    assert kind_of(pair.draft) is KINDS["ngram"] and "ngram" not in HEADS
    assert target_of(pair).tap_layers == pair.draft.tap_layers == ()
    assert loaded.reading == {}
    assert isinstance(pair.draft, nn.Module)
    assert not list(pair.draft.parameters()) and not pair.draft.state_dict()


def functions(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_all_functions_of_its_protocol(name: str) -> None:
    assert functions(DrafterKind) == {"without_checkpoint", "methods"}
    assert functions(HeadKind) == {"claims", "load", "describe", "readings"}
    required = functions(DrafterKind) | (functions(HeadKind) if name in HEADS else set())
    assert all(callable(getattr(KINDS[name], function)) for function in required)


def test_unknown_kind_is_refused_by_name(tmp_path: Path) -> None:
    head = write_speculators(tmp_path, HeadShape())
    config = head / "config.json"
    config.write_text(config.read_text().replace('"eagle3"', '"medusa"'))
    checkpoint = Checkpoint(head)
    with pytest.raises(UnsupportedError, match="a set of Medusa heads"):
        kind_of_checkpoint(checkpoint).describe(checkpoint, None, None)
