"""Repositories as users write them, and where their files are in the local cache."""

import re
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[^:@]+))?(:(?P<file>[^/:@]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
SNAPSHOT = re.compile(
    rf".*/models--(?P<id>[^/]+)/snapshots/(?P<commit>{COMMIT.pattern})(/(?P<file>[^/]+))?"
)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository as users write it, `ORG/NAME[@REVISION][:FILE]`; a revision is a branch, a tag
    or a commit."""

    id: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Repository | None":
        """Read a name; None for what cannot be one."""
        match = NAME.fullmatch(text)
        is_path = text.startswith((".", "~")) or match is None
        return None if is_path or match is None else cls(*match.group("id", "revision", "file"))

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.id}{revision}{f':{self.file}' if self.file else ''}"

    @classmethod
    def of_path(cls, path: Path) -> "Repository | None":
        """Return the repository, commit and file of a path in the cache; None for other paths."""
        match = SNAPSHOT.fullmatch(path.absolute().as_posix())
        if match is None:
            return None
        return cls(match["id"].replace("--", "/"), match["commit"], match["file"])
