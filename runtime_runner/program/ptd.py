"""Reads a `.ptd` file: blobs by name, in ExecuTorch's FlatTensor format.

Layout (extension/flat_tensor/serialize): the flatbuffer's root offset and identifier, then at byte
8 a header of `FH01`, u32 header length, and as u64 the flatbuffer's offset and size, the start of
the blobs and their total size. The flatbuffer's own offsets count from byte 0.
"""

import struct
from pathlib import Path

from eagle_aot.runtime_runner.program.flatbuffer import (
    Segments,
    Table,
    UnreadableError,
    opened,
    part,
)

IDENTIFIER = b"FT01"
HEADER = b"FH01"
# Fields of the root table, FlatTensor in flat_tensor.fbs.
SEGMENTS, NAMED_DATA = 1, 2


class TensorData(Segments):
    """The storages of a program's weights, by their keys."""

    @classmethod
    def open(cls, path: Path) -> "TensorData":
        """Map a file. Raises ArtifactError when it is missing, damaged or of another version."""
        with opened(path) as data:
            magic, _, offset, size, base, area_size = struct.unpack_from("<4sI4Q", data, 8)
            if magic != HEADER:
                raise UnreadableError("not a weight file (its header is missing)")
            root = Table.root(part(data, 0, offset + size), IDENTIFIER)
            area = part(data, base, area_size)
            return cls(path, area, root.tables(SEGMENTS), root.tables(NAMED_DATA))
