"""The blobs that a `.pte` or `.ptd` file carries behind its flatbuffer."""

from eagle_aot.runtime_runner.program.flatbuffer import Tables
from eagle_aot.runtime_runner.program.untrusted_file import UntrustedBytes, shown

# Fields of DataSegment and NamedData, which both schemas define alike.
OFFSET, SIZE = 0, 1
KEY, SEGMENT_INDEX = 0, 1


class Segments:
    """Blobs by number, and the keys that name them; several keys may name one blob."""

    def __init__(self, area: UntrustedBytes, segments: Tables, named: Tables) -> None:
        """`segments` lie in `area`, where their offsets start. Raises ArtifactError."""
        self._area = area
        self._parts = [area.part(s.number(OFFSET, "Q"), s.number(SIZE, "Q")) for s in segments]
        self.by_key: dict[str, int] = {}
        for entry in named:
            key, index = entry.text(KEY), entry.number(SEGMENT_INDEX, "I")
            if key in self.by_key:
                area.refuse(f"two blobs are named {shown(key)}")
            self.at(index)
            self.by_key[key] = index

    def at(self, index: int) -> UntrustedBytes:
        """A blob by its number."""
        if index >= len(self._parts):
            self._area.refuse(f"damaged (segment {index} of {len(self._parts)})")
        return self._parts[index]

    def index(self, key: str) -> int:
        """The number of the blob behind a key."""
        if key not in self.by_key:
            self._area.refuse(f"holds no blob named {shown(key)}")
        return self.by_key[key]

    def named(self, key: str) -> memoryview:
        """The blob behind a key."""
        return self.at(self.index(key)).view
