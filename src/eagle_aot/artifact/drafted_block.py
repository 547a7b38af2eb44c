"""The block size of a DFlash head, read from a manifest."""

import msgspec
from msgspec import Struct

from eagle_aot.artifact.files import MANIFEST
from eagle_aot.artifact.manifest import Manifest
from eagle_aot.artifact.methods import DFLASH_BLOCK
from eagle_aot.common.errors import ArtifactError


class _Head(Struct):
    block_size: int


class _Decisions(Struct):
    head: _Head


def block_size(manifest: Manifest) -> int:
    """Returns the rows of a block, the bonus token's included. Raises ArtifactError where the
    manifest has no valid number."""
    try:
        rows = msgspec.convert(manifest.decisions, _Decisions).head.block_size
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{MANIFEST}: damaged ({error}): export again") from error
    most = manifest.shapes[DFLASH_BLOCK].max_rows if DFLASH_BLOCK in manifest.shapes else 0
    if not 2 <= rows <= most:
        raise ArtifactError(f"{MANIFEST}: damaged (block_size is {rows}): export again")
    return rows
