"""What a pair is made of, as it was asked for."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from eagle_aot.artifact import NGRAM
from eagle_aot.common.errors import CheckpointNotFoundError, SettingError
from eagle_aot.export.drafters.registry import KINDS, OF_DUMMIES
from eagle_aot.export.loading.provenance import Provenance
from eagle_aot.targets import get_target, model_type
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.checkpoint_path import CONFIG, is_checkpoint, why_no_checkpoint
from eagle_aot.targets.int4.quantise import SCHEMES
from eagle_aot.targets.int4.quantisers import NONE, QUANTS
from eagle_aot.targets.registry import AUTO as AUTO_TARGET

AUTO, DUMMY = "auto", "dummy"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A line of the target table and two directories, None where nothing is read.

    Instead of a directory a target may be a GGUF file. `drafter` names a kind, or is "auto" for
    what the checkpoint in `draft_dir` is. `tap_layers` are boundaries that overrule what a
    checkpoint says; `quantize` names a scheme for the target's dense linears; `draft_quant` is one
    of `QUANTS` for the head's linears, and `table_quant` one for the target's output table.
    """

    target_model: str
    target_dir: Path | None = None
    draft_dir: Path | None = None
    load_format: str = AUTO
    dummy_layers: int | None = None
    tap_layers: tuple[int, ...] | None = None
    quantize: str | None = None
    draft_quant: str = NONE
    drafter: str = AUTO
    table_quant: str = NONE

    @classmethod
    def find(
        cls,
        target_model: str,
        target_dir: Path | None,
        draft_dir: Path | None,
        load_format: str,
        dummy_layers: int | None = None,
        tap_layers: tuple[int, ...] | None = None,
        quantize: str | None = None,
        draft_quant: str = NONE,
        drafter: str = AUTO,
        table_quant: str = NONE,
    ) -> "Source":
        """The pair as asked for, completed from the table, checked before anything is loaded.

        `target_model` "auto" becomes the `model_type` in the directory's config.json. Where no
        head is named, the table's is taken; without any, `drafter` "auto" becomes prompt lookup.
        Raises SettingError for an unknown target or scheme, for options that say nothing together
        and for a directory that must be named, CheckpointNotFoundError for one that does not exist,
        UnsupportedError for a target that is known and refused.
        """
        asked = cls(
            target_model=target_model,
            target_dir=target_dir,
            draft_dir=draft_dir,
            load_format=load_format,
            dummy_layers=dummy_layers,
            tap_layers=tap_layers,
            quantize=quantize,
            draft_quant=draft_quant,
            drafter=drafter,
            table_quant=table_quant,
        )
        check_names(asked)
        found = of_dummy(asked) if asked.is_dummy else of_checkpoints(asked)
        if not found.has_head:
            check_alone(found)
        return found

    @property
    def is_dummy(self) -> bool:
        """Whether its weights are random."""
        return self.load_format == DUMMY

    @property
    def has_head(self) -> bool:
        """Whether the target is exported together with what drafts for it."""
        return self.drafter != NGRAM

    @cached_property
    def provenance(self) -> Provenance:
        """What its directories hold beside weights, each read once."""
        return Provenance(self.target_dir, self.draft_dir, self.is_dummy)


def refuse(*cases: tuple[object, str]) -> None:
    """Raise SettingError with the message of the first case that holds."""
    for holds, message in cases:
        if holds:
            raise SettingError(message)


def check_names(asked: Source) -> None:
    """Raise SettingError for what is named and not known."""
    for flag, name, known in (
        ("--quantize", asked.quantize, (None, *SCHEMES)),
        ("--draft-quant", asked.draft_quant, QUANTS),
        ("--table-quant", asked.table_quant, QUANTS),
        ("--drafter", asked.drafter, (AUTO, *KINDS)),
    ):
        if name not in known:
            raise SettingError(f"{flag} {name}: known are {', '.join(filter(None, known))}")


def of_dummy(asked: Source) -> Source:
    """Of random weights. Raises SettingError beside what speaks of checkpoints."""
    name = asked.target_model
    refuse(
        (
            get_target(name).dummy is None,
            f"--load-format dummy: {name} has no geometry of its own, "
            "name a target of --list-targets",
        ),
        (
            asked.target_dir or asked.draft_dir,
            f"--load-format dummy builds the geometry of {name}: "
            "leave out --target-dir and --draft-dir",
        ),
        (asked.tap_layers is not None, "--tap-layers: a dummy taps where public heads do"),
        (asked.quantize is not None, "--quantize: a dummy is INT4 already"),
    )
    return replace(asked, drafter=OF_DUMMIES) if asked.drafter == AUTO else asked


def of_checkpoints(asked: Source) -> Source:
    """Read from directories. Raises as `Source.find` does."""
    if asked.dummy_layers is not None:
        raise SettingError("--dummy-layers: a checkpoint has its own; use --load-format dummy")
    found = with_directories(with_name(asked))
    check_target_dir(found)
    if found.drafter == AUTO and found.draft_dir is None:
        found = replace(found, drafter=NGRAM)
    if found.has_head:
        check_draft_dir(found)
    return found


def with_name(asked: Source) -> Source:
    """With the name that a checkpoint gives itself in place of "auto"."""
    if asked.target_model != AUTO_TARGET or asked.target_dir is None:
        return asked
    return replace(asked, target_model=model_type(Checkpoint(asked.target_dir)))


def with_directories(asked: Source) -> Source:
    """With those that the table knows: a head that ships with its target is for that one alone."""
    spec = get_target(asked.target_model)
    if asked.target_dir is not None and spec.target_dir is not None:
        return asked
    head = asked.draft_dir or (spec.draft_dir if asked.has_head else None)
    return replace(asked, target_dir=asked.target_dir or spec.target_dir, draft_dir=head)


def check_target_dir(found: Source) -> None:
    """Raise SettingError where it is not named, CheckpointNotFoundError where nothing is there."""
    if found.target_dir is None:
        raise SettingError(f"--target-dir is needed: {found.target_model} is read from a directory")
    if not is_checkpoint(found.target_dir):
        raise CheckpointNotFoundError(f"--target-dir {why_no_checkpoint(found.target_dir)}")


def check_draft_dir(found: Source) -> None:
    """The same of the head's."""
    if found.draft_dir is None:
        raise SettingError(f"--draft-dir is needed: {found.drafter} is read from a directory")
    if not found.draft_dir.is_dir():
        raise CheckpointNotFoundError(f"--draft-dir {found.draft_dir}: no such directory")
    if not (found.draft_dir / CONFIG).is_file():
        raise CheckpointNotFoundError(
            f"--draft-dir {found.draft_dir}: holds no {CONFIG}, so it is no draft head"
        )


def check_alone(found: Source) -> None:
    """Raise SettingError where something is said of a head and there is none."""
    refuse(
        (found.draft_dir, f"--drafter {found.drafter} reads no head: leave out --draft-dir"),
        (found.tap_layers, "--tap-layers: there is no head, name one with --draft-dir"),
        (found.draft_quant != NONE, "--draft-quant: there is no head, name one with --draft-dir"),
    )
