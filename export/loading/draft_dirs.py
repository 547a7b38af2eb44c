"""`--draft-dir`, once or several times, or a dummy's `--drafter`: what drafts, and how it is
called."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eagle_aot.artifact import NGRAM
from eagle_aot.artifact.manifest import NAME
from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.registry import KINDS, name_of_kind

RESERVED = ("auto", NGRAM)
"""What means something else where a drafter is chosen."""


@dataclass(frozen=True, slots=True)
class DraftDir:
    """One of several; it is called what its kind is called where `name` is None. Nothing is read
    for one without a `path`, a dummy of its `kind`; else that is what its files say."""

    path: Path | None
    name: str | None = None
    kind: str | None = None

    @classmethod
    def parse(cls, given: Path) -> "DraftDir":
        """NAME=DIR, or a directory."""
        name, is_named, path = str(given).partition("=")
        if not is_named or given.is_dir() or not re.match(NAME, name):
            return cls(given)
        return cls(Path(path), name)


def parse_draft_dirs(given: Sequence[Path]) -> tuple[Path | None, tuple[DraftDir, ...]]:
    """The only one, or all of several. Raises SettingError for a name that tells nothing apart."""
    found = tuple(map(DraftDir.parse, given))
    if len(found) > 1:
        return None, found
    if found and found[0].name is not None:
        raise SettingError(f"--draft-dir {given[0]}: a name is for several: leave it out")
    return (found[0].path if found else None), ()


def dummies(asked: str) -> tuple[DraftDir, ...]:
    """Of kinds, or NAME=KIND, with commas between them; none of one alone. Raises SettingError
    where two have the same name, or one that means something else, or need nothing of an artifact.
    """
    if asked in KINDS:
        return ()
    found: dict[str, DraftDir] = {}
    for one in asked.split(","):
        kind = kind_of(one)
        name = one.partition("=")[0]
        if kind == NGRAM:
            raise SettingError(f"--drafter {asked}: any artifact drafts with {NGRAM}: leave it out")
        if name in found:
            raise SettingError(
                f"--drafter {asked}: two are called {name!r}: name one, as in other={kind}"
            )
        check_name(f"--drafter {one}", name, kind)
        found[name] = DraftDir(None, name, kind)
    if len(found) == 1:
        raise SettingError(f"--drafter {asked}: a name is for several: leave it out")
    return tuple(found.values())


def kind_of(asked: str) -> str:
    """What KIND or NAME=KIND asks for."""
    return asked.rpartition("=")[2]


def check_name(asked: str, name: str, kind: str) -> None:
    """Raise SettingError for what cannot be chosen by its name."""
    if not re.match(NAME, name):
        raise SettingError(f"{asked}: a name has small letters, digits and hyphens")
    if name in RESERVED or (name in KINDS and name != kind):
        raise SettingError(f"{asked}: {name!r} means something else: choose another name")


def named(drafts: Sequence[DraftDir]) -> tuple[DraftDir, ...]:
    """Each with its name. Raises SettingError where two have the same one, or one that means
    something else, and CheckpointError for files that cannot be read."""
    found: dict[str, DraftDir] = {}
    for one in drafts:
        assert one.path is not None, "a dummy has its name"
        kind = name_of_kind(HeadCheckpoint(one.path))
        name = kind if one.name is None else one.name
        check_name(f"--draft-dir {name}={one.path}", name, kind)
        if (other := found.get(name)) is not None:
            raise SettingError(
                f"--draft-dir {other.path} and {one.path} are both called {name!r}: name them, "
                f"as in --draft-dir first={other.path} --draft-dir second={one.path}"
            )
        found[name] = replace(one, name=name)
    return tuple(found.values())
