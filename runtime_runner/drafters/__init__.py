"""Drafters propose the tokens that the target verifies: a file for each kind, and their table."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, device

from eagle_aot.artifact import (
    DFLASH,
    DFLASH2,
    DRAFT_IDS,
    DRAFTERS,
    DSPARK,
    EAGLE3,
    GEMMA4_ASSISTANT,
    MTP,
    NGRAM,
    P_EAGLE,
    Constants,
    Manifest,
)
from eagle_aot.common.errors import ArtifactError, SettingError
from eagle_aot.common.text import nearest
from eagle_aot.runtime_runner.adaptive.backlog import CatchUpDrafter
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter
from eagle_aot.runtime_runner.drafters.dflash2 import DFlash2Drafter
from eagle_aot.runtime_runner.drafters.dspark import DSparkDrafter
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter, MtpDrafter, PEagleDrafter
from eagle_aot.runtime_runner.drafters.gemma4_assistant import AssistantDrafter
from eagle_aot.runtime_runner.drafters.ngram import NgramDrafter
from eagle_aot.runtime_runner.program.executor import Executor

DrafterFactory = Callable[[Executor, Constants, Tensor | None, Manifest], CatchUpDrafter]
"""Makes a drafter from an opened program, its constants, the target id of each draft id (int64
[Vd], None if they are the same), and the manifest."""

KINDS: dict[str, DrafterFactory] = {
    EAGLE3: Eagle3Drafter.open,
    P_EAGLE: PEagleDrafter.open,
    GEMMA4_ASSISTANT: AssistantDrafter.open,
    MTP: MtpDrafter.open,
    DFLASH: DFlashDrafter.open,
    DFLASH2: DFlash2Drafter.open,
    DSPARK: DSparkDrafter.open,
    NGRAM: NgramDrafter.open,
}
"""What makes a drafter, by the name of its kind in a manifest."""


def drafter_factory(
    manifest: Manifest, directory: Path, requested: str | None = None
) -> DrafterFactory:
    """Return what makes a drafter of the requested kind, by default the artifact's own.

    Raises ArtifactError if this runner does not know the artifact's own drafter, and SettingError
    for a requested kind that is unknown or needs a method that the artifact lacks.
    """
    kind = manifest.drafter if requested is None else requested
    if kind not in KINDS and requested is None:
        raise ArtifactError(
            f"{directory}: its drafter {kind!r} is not known to this runner, which has "
            f"{', '.join(KINDS)}: run it with the version that exported it"
        )
    if kind not in KINDS:
        known = f"there are {', '.join(KINDS)}{nearest(kind, KINDS)}"
        raise SettingError(f"drafter {kind!r} is not known: {known}")
    missing = [method for method in DRAFTERS[kind] if method not in manifest.methods]
    if missing and requested is not None:
        raise SettingError(
            f"drafter {kind!r}: {directory} has no {missing[0]}: "
            f"leave it out to draft with {manifest.drafter!r}"
        )
    return KINDS[kind]


def read_draft_ids(directory: Path, where: device | str) -> Tensor | None:
    """Return the target id of each draft id, int64 [Vd]; None if they are the same."""
    path = directory / DRAFT_IDS
    if not path.is_file():
        return None
    from safetensors.torch import load

    return load(path.read_bytes())["target_ids"].to(where)  # by bytes: a path need not be UTF-8
