"""A file that is mapped, not read, and not trusted: what lies outside its bytes is refused."""

import mmap
import struct
from pathlib import Path
from typing import Any, NoReturn

from eagle_aot.common.errors import ArtifactError

# Bytes that a file may say about itself: names, lists, weight tables. A program needs some 200 per
# weight and method. This bounds the time and memory that a hostile file can cost.
MAX_DESCRIPTION = 8 << 20


class UntrustedBytes:
    """A stretch of a file. Every read that does not fit in it raises ArtifactError."""

    __slots__ = ("_unspent", "_whole", "path", "view")  # a file may have many

    def __init__(self, path: Path, view: memoryview, whole: "UntrustedBytes | None" = None) -> None:
        self.path = path
        self.view = view
        self._whole = whole or self
        self._unspent = min(len(view), MAX_DESCRIPTION)

    @classmethod
    def of_file(cls, path: Path) -> "UntrustedBytes":
        """Map a whole file, copy-on-write: a tensor may share its memory, and the file stays.

        Raises ArtifactError when the file is missing, empty or unreadable.
        """
        try:
            if not path.is_file():  # a pipe or a device would keep us waiting
                raise ArtifactError(f"{path}: missing: export again")
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: cannot be read ({error}): export again") from error
        return cls(path, memoryview(mapped))

    def __len__(self) -> int:
        return len(self.view)

    def refuse(self, what: str) -> NoReturn:
        """Raise ArtifactError: the file and what is wrong with it."""
        raise ArtifactError(f"{self.path}: {what}: export again")

    def part(self, start: int, length: int) -> "UntrustedBytes":
        """The `length` bytes from `start`."""
        self.require(start, length)
        return UntrustedBytes(self.path, self.view[start : start + length], self._whole)

    def require(self, start: int, length: int) -> None:
        """Refuse unless the `length` bytes from `start` are there."""
        if start < 0 or length < 0 or start + length > len(self):
            self.refuse(f"damaged (points at byte {start + length} of {len(self)})")

    def unpack(self, layout: str, start: int) -> tuple[Any, ...]:
        """Little-endian numbers at `start`, in the notation of `struct`, without its prefix."""
        self.require(start, struct.calcsize("<" + layout))
        return struct.unpack_from("<" + layout, self.view, start)

    def text(self, start: int, length: int) -> str:
        """A UTF-8 string."""
        self.require(start, length)
        try:
            return str(self.view[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self.refuse(f"damaged (a name that is not UTF-8 at byte {start})")

    def spend(self, length: int) -> None:
        """Account for a list or string of that many bytes, before it is gone through.

        An honest writer gives each of them bytes of its own, so all of them together fit in the
        file. Lists that share bytes could keep a reader busy for ever.
        """
        self._whole._unspent -= length
        if self._whole._unspent < 0:
            self.refuse("damaged (its lists are longer than the file, or than any model needs)")


def shown(name: str) -> str:
    """A name from a file as an error line can carry it."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")
