"""What proposes drafts, one file a kind, and the table of the kinds."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, device

from eagle_aot.artifact import DRAFT_IDS, Constants, Manifest
from eagle_aot.common.errors import ArtifactError
from eagle_aot.runtime_runner.adaptive.backlog import LateDrafter
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.executors import Executor

Make = Callable[[Executor, Constants, Tensor | None], LateDrafter]
"""From an opened program, its constants and the target's ids of the drafter's, int64 [Vd]; None
where they are the same."""

KINDS: dict[str, Make] = {"eagle3": Eagle3Drafter}
"""By the name in a manifest."""


def kind_of(manifest: Manifest, directory: Path) -> Make:
    """What makes an artifact's drafter. Raises ArtifactError for one that is not known here."""
    if manifest.drafter not in KINDS:
        raise ArtifactError(
            f"{directory}: its drafter {manifest.drafter!r} is not known to this runner, which has "
            f"{', '.join(KINDS)}: run it with the version that exported it"
        )
    return KINDS[manifest.drafter]


def read_draft_ids(directory: Path, where: device | str) -> Tensor | None:
    """The target's ids of the drafter's, int64 [Vd]; None where they are the same."""
    path = directory / DRAFT_IDS
    if not path.is_file():
        return None
    from safetensors.torch import load_file

    return load_file(path, device=str(where))["target_ids"]
