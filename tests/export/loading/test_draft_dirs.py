"""`--draft-dir` more than once, or several kinds of dummies: names, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointNotFoundError, PairingError, SettingError
from eagle_aot.export.cli import main
from eagle_aot.export.drafters.verdict import RANDOM, unknown
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.loading.draft_dirs import DraftDir, parse_draft_dirs
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.loading.provenance import NOWHERE
from eagle_aot.export.loading.source import Source
from eagle_aot.export.methods import method_specs
from eagle_aot.export.options import ExportOptions, command_line
from eagle_aot.export.pipeline import run_self_test
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.step import PromptChunk
from support.heads.dflash import write_several
from support.random_pair import write_head

CACHES = CacheSpec(128, torch.float32, sequences=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    return write_several(tmp_path_factory.mktemp("several"))


def source_of(target: Path, *given: Path, drafter: str = "auto") -> Source:
    draft_dir, drafts = parse_draft_dirs(given)
    return Source.find("auto", target, draft_dir, "auto", drafter=drafter, drafts=drafts)


def test_each_is_called_as_its_kind_or_as_is_said(files: tuple[Path, ...]) -> None:
    target, *heads = files
    source = source_of(target, *heads)
    assert [one.name for one in source.drafts] == ["eagle3", "dflash", "quick"]
    assert source.draft_dir is None and source.has_head
    assert source_of(target, heads[0]).draft_dir == heads[0]


def test_a_directory_may_have_such_a_name(tmp_path: Path) -> None:
    there = tmp_path / "a=b"
    there.mkdir()
    for given in (there, Path("x/y=z"), Path("Up=z")):
        assert DraftDir.parse(given) == DraftDir(given)
    assert DraftDir.parse(Path("a=b/c=d")) == DraftDir(Path("b/c=d"), "a")


def test_what_tells_nothing_apart_is_refused(files: tuple[Path, ...]) -> None:
    target, eagle3, dflash, quick = files
    for given, message in (
        ([eagle3, eagle3], "are both called 'eagle3': name them, as in --draft-dir first="),
        ([Path(f"a={eagle3}"), Path(f"a={dflash}")], "are both called 'a'"),
        ([eagle3, Path(f"ngram={dflash}")], "'ngram' means something else"),
        ([eagle3, Path(f"auto={dflash}")], "'auto' means something else"),
        ([quick, Path(f"eagle3={dflash}")], "'eagle3' means something else"),
        ([Path(f"a={eagle3}")], "a name is for several: leave it out"),
    ):
        with pytest.raises(SettingError, match=message) as refused:
            source_of(target, *given)
        assert "\n" not in str(refused.value)


def test_options_about_one_head_are_refused(files: tuple[Path, ...]) -> None:
    target, *heads = files
    with pytest.raises(SettingError, match="--drafter eagle3: of several --draft-dir each"):
        source_of(target, *heads, drafter="eagle3")
    with pytest.raises(SettingError, match="--tap-layers goes with one"):
        drafts = parse_draft_dirs(heads)[1]
        Source.find("auto", target, None, "auto", tap_layers=(1, 2, 3), drafts=drafts)
    with pytest.raises(SettingError, match="--self-test reads one head: name one"):
        run_self_test(source_of(target, *heads), ExportOptions(backend="xnnpack"))
    with pytest.raises(CheckpointNotFoundError, match="none: no such directory"):
        source_of(target, heads[0], target / "none")


def test_dummies_of_several_kinds_have_their_names() -> None:
    source = Source.find("gemma4-tiny", None, None, "dummy", drafter="dflash,eagle3")
    assert [one.name for one in source.drafts] == ["dflash", "eagle3"] and source.has_head
    pair = load_pair(source, torch.float32, CACHES).pair
    assert {name: draft.kind for name, draft in pair.drafts.items()} == {
        "dflash": "dflash",
        "eagle3": "eagle3",
    }
    assert source.provenance.drafts == dict.fromkeys(["dflash", "eagle3"], NOWHERE)
    assert run_self_test(source, ExportOptions(backend="xnnpack")) == unknown(RANDOM)


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (
            "eagle3,eagle3",
            "--drafter eagle3,eagle3: two are called 'eagle3': name one, as in other",
        ),
        ("a=eagle3,a=dflash", "--drafter a=eagle3,a=dflash: two are called 'a'"),
        ("eagle3,dflash=eagle3", "--drafter dflash=eagle3: 'dflash' means something else: choose"),
        ("eagle3,A=eagle3", "--drafter A=eagle3: a name has small letters, digits and hyphens"),
        ("fast=eagle3", "--drafter fast=eagle3: a name is for several: leave it out"),
        ("eagle3,ngram", "--drafter eagle3,ngram: any artifact drafts with ngram: leave it out"),
        ("auto,eagle3", "--drafter auto: known are"),
        ("eagle3,none", "--drafter none: known are"),
    ],
)
def test_dummies_that_tell_nothing_apart_are_refused(drafter: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Source.find("gemma4-tiny", None, None, "dummy", drafter=drafter)


def test_kinds_of_checkpoints_are_in_their_files(files: tuple[Path, ...]) -> None:
    target, *heads = files
    for given in ((), heads[:1], heads):
        with pytest.raises(SettingError, match="--drafter eagle3,dflash: are dummies: of several"):
            source_of(target, *given, drafter="eagle3,dflash")


@pytest.mark.parametrize("words", [["--drafter=p-eagle", "--drafter", "dflash"], None])
def test_the_command_takes_them_apart_or_together(words: list[str] | None) -> None:
    """As a manifest records them."""
    asked = words or command_line({"drafter": "p-eagle,dflash"})
    found = main.make_context("eagle-export", ["--target-model=gemma4-tiny", *asked])
    assert found.params["drafter"] == "p-eagle,dflash"
    assert main.make_context("eagle-export", []).params["drafter"] == "auto"


def test_one_that_does_not_fit_is_named(files: tuple[Path, ...], tmp_path: Path) -> None:
    target, eagle3, dflash, _ = files
    write_head(tmp_path / "head", vocab=512, taps=(2, 3, 5))
    source = source_of(target, eagle3, dflash, Path(f"wide={tmp_path / 'head'}"))
    with pytest.raises(PairingError, match=r"^drafter wide: "):
        load_pair(source, torch.float32, CACHES)


def test_each_reads_of_the_target_what_it_reads_alone(files: tuple[Path, ...]) -> None:
    target, *heads = files
    pair = load_pair(source_of(target, *heads), torch.float32, CACHES).pair
    assert pair.tap_layers == (2, 3, 4, 5, 6)
    together = features(pair.target, pair.features)
    widths = [draft.hidden_size for draft in pair.drafts.values()]
    for name, found in zip(pair.drafts, together.split(widths, dim=-1), strict=True):
        with pair.tapped_by(name) as part:
            assert part.target.tap_layers == part.draft.tap_layers != pair.tap_layers
            assert torch.equal(features(part.target, part.features), found)
    assert torch.equal(features(pair.target, pair.features), together)


def features(target: TapTarget, fused: object) -> Tensor:
    """Of a short prompt."""
    assert callable(fused)
    rows = torch.arange(70)
    target.reset_cache()
    with torch.no_grad():
        _, taps = target.run(rows.unsqueeze(0), PromptChunk(rows, torch.zeros(1, dtype=torch.long)))
        (found,) = fused(taps)
    assert isinstance(found, Tensor)
    return found


def test_methods_and_caches_are_each_drafters_own(files: tuple[Path, ...]) -> None:
    target, *heads = files
    pair = load_pair(source_of(target, *heads), torch.float32, CACHES).pair
    specs = method_specs(pair, method_lengths(72, 128, 0, 2))
    assert [*specs] == [
        "prefill", "target_verify", "eagle3_draft_decode", "dflash_dflash_context",
        "dflash_dflash_block", "quick_peagle_decode", "copy_rows",
    ]  # fmt: skip
    of_each = [specs[name].writes for name in ("eagle3_draft_decode", "quick_peagle_decode")]
    assert of_each[0] == {"draft_eagle3.kv_cache.k", "draft_eagle3.kv_cache.v"}
    assert of_each[1] == {"draft_quick.kv_cache.k", "draft_quick.kv_cache.v"}
    written = specs["copy_rows"].writes
    assert written == frozenset().union(*(spec.writes for spec in specs.values()))
    for spec in specs.values():
        buffers = dict(spec.module.named_buffers())
        assert spec.writes <= set(buffers)
