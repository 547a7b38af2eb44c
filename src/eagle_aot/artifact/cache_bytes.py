"""The memory that caches take, as a manifest records it."""

from typing import Any

import msgspec
from msgspec import Struct, structs

from eagle_aot.artifact.manifest import Manifest
from eagle_aot.common.text import gigabytes


class CacheBytes(Struct, frozen=True, kw_only=True):
    """Bytes of all sequences, and of one: in all caches, in the target's and in the drafter's."""

    bytes: int
    bytes_of_a_sequence: int
    target_bytes_of_a_sequence: int
    draft_bytes_of_a_sequence: int

    @property
    def sequences(self) -> int:
        """How many sequences the caches hold."""
        return self.bytes // max(self.bytes_of_a_sequence, 1)

    @classmethod
    def of(cls, manifest: Manifest) -> "CacheBytes | None":
        """Read it from a manifest. Returns None where the export did not record it."""
        try:
            return msgspec.convert(manifest.decisions.get("caches"), cls)
        except msgspec.ValidationError:
            return None

    def to_json(self) -> dict[str, Any]:
        """Returns it as the manifest records it."""
        return structs.asdict(self)

    def fitting(self, free: int) -> int:
        """Returns how many sequences' caches fit into `free` bytes."""
        return max(free, 0) // max(self.bytes_of_a_sequence, 1)

    def __str__(self) -> str:
        parts = self.target_bytes_of_a_sequence, self.draft_bytes_of_a_sequence
        target, draft = map(gigabytes, parts)
        return (
            f"a sequence takes {gigabytes(self.bytes_of_a_sequence)} of caches (target {target}, "
            f"drafter {draft}), all {self.sequences} of this artifact {gigabytes(self.bytes)}"
        )
