"""Reading a `.ptd` file: blobs by name, in ExecuTorch's FlatTensor format.

Layout (extension/flat_tensor/serialize): the flatbuffer's root offset and identifier, then at byte
8 a header of `FH01`, u32 header length, and as u64 the flatbuffer's offset and size, the start of
the blobs and their total size. The flatbuffer's own offsets count from byte 0.
"""

from collections.abc import Mapping
from pathlib import Path

from eagle_aot.runtime_runner.program.flatbuffer import Table
from eagle_aot.runtime_runner.program.segments import Segments
from eagle_aot.runtime_runner.program.untrusted_file import UntrustedBytes

IDENTIFIER = b"FT01"
HEADER = b"FH01"
HEADER_LENGTH = 40
SCHEMA_VERSION = 0
# Fields of the root table, FlatTensor in flat_tensor.fbs.
VERSION, SEGMENTS, NAMED_DATA = 0, 1, 2


class TensorData:
    """The storages of a program's weights."""

    def __init__(self, path: Path, segments: Segments) -> None:
        self.path = path
        self.keys: Mapping[str, int] = segments.by_key  # storage key -> segment
        self._segments = segments

    @classmethod
    def open(cls, path: Path) -> "TensorData":
        """Map a file. Raises ArtifactError when it is missing, damaged or of another version."""
        data = UntrustedBytes.of_file(path)
        magic, length, offset, size, base, area_size = data.unpack("4sI4Q", 8)
        if magic != HEADER or length < HEADER_LENGTH:
            data.refuse("not a weight file (its header is missing)")
        area = data.part(base, area_size)
        root = Table.root(data.part(0, offset + size), IDENTIFIER)
        root.require_version(VERSION, SCHEMA_VERSION)
        return cls(path, Segments(area, root.tables(SEGMENTS), root.tables(NAMED_DATA)))

    def storage(self, key: str) -> memoryview:
        """The bytes behind a storage key, writable without changing the file.

        Raises ArtifactError when there is no such key.
        """
        return self._segments.named(key)

    def segment(self, key: str) -> int:
        """Which segment is behind a storage key: equal numbers mean the same bytes.

        Raises ArtifactError when there is no such key.
        """
        return self._segments.index(key)
