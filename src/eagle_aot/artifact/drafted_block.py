"""What a manifest says of a head that drafts a block at once."""

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
    """Rows of its blocks, the bonus token's among them. Raises ArtifactError where it is unsaid."""
    try:
        found = msgspec.convert(manifest.decisions, _Decisions).head.block_size
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{MANIFEST}: damaged ({error}): export again") from error
    most = manifest.shapes[DFLASH_BLOCK].max_rows if DFLASH_BLOCK in manifest.shapes else 0
    if not 2 <= found <= most:
        raise ArtifactError(f"{MANIFEST}: damaged (block_size is {found}): export again")
    return found
