"""What proposes drafts, one file a kind, and the table of the kinds."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, device

from eagle_aot.artifact import (
    DFLASH,
    DRAFT_IDS,
    DRAFT_PREFILL,
    DRAFTERS,
    EAGLE3,
    GEMMA4_ASSISTANT,
    NGRAM,
    P_EAGLE,
    Constants,
    Manifest,
)
from eagle_aot.artifact.manifest import dflash_block_size
from eagle_aot.common.errors import ArtifactError, SettingError
from eagle_aot.runtime_runner.adaptive.backlog import CatchUpDrafter
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter, PEagleDrafter
from eagle_aot.runtime_runner.drafters.gemma4_assistant import AssistantDrafter
from eagle_aot.runtime_runner.drafters.ngram import NgramDrafter
from eagle_aot.runtime_runner.program.executor import Executor

DrafterFactory = Callable[[Executor, Constants, Tensor | None, Manifest], CatchUpDrafter]
"""Makes a drafter from an opened program, its constants, the target id of each draft id (int64
[Vd], None where they are the same), and the manifest."""


def eagle3(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> CatchUpDrafter:
    """The artifact's draft head."""
    stores_prompts = DRAFT_PREFILL in manifest.methods
    return Eagle3Drafter(executor, constants, ids, stores_prompts, reads_images(manifest))


def peagle(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> CatchUpDrafter:
    """The artifact's head, which drafts in parallel."""
    stores_prompts = DRAFT_PREFILL in manifest.methods
    return PEagleDrafter(executor, constants, ids, stores_prompts, reads_images(manifest))


def reads_images(manifest: Manifest) -> bool:
    """Return whether the head's `draft_prefill` takes rows of images."""
    return manifest.images is not None and manifest.images.drafter_reads_images


def gemma4_assistant(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> CatchUpDrafter:
    """The artifact's assistant, whose ids are the target's."""
    return AssistantDrafter(executor, constants, ids)


def dflash(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> CatchUpDrafter:
    """The artifact's head, whose blocks are as long as its manifest says."""
    return DFlashDrafter(executor, constants, ids, dflash_block_size(manifest))


def ngram(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> CatchUpDrafter:
    """Prompt lookup, which needs nothing of the artifact."""
    return NgramDrafter(constants, executor.device)


KINDS: dict[str, DrafterFactory] = {
    EAGLE3: eagle3,
    P_EAGLE: peagle,
    GEMMA4_ASSISTANT: gemma4_assistant,
    DFLASH: dflash,
    NGRAM: ngram,
}
"""By the name in a manifest."""


def drafter_factory(
    manifest: Manifest, directory: Path, requested: str | None = None
) -> DrafterFactory:
    """Returns what makes a drafter of the requested kind, or the artifact's own one by default.

    Raises ArtifactError where this runner does not know the artifact's own drafter, and
    SettingError for a requested kind that is unknown or needs a method that the artifact lacks.
    """
    kind = manifest.drafter if requested is None else requested
    if kind not in KINDS and requested is None:
        raise ArtifactError(
            f"{directory}: its drafter {kind!r} is not known to this runner, which has "
            f"{', '.join(KINDS)}: run it with the version that exported it"
        )
    if kind not in KINDS:
        raise SettingError(f"drafter {kind!r} is not known: there are {', '.join(KINDS)}")
    missing = [method for method in DRAFTERS[kind] if method not in manifest.methods]
    if missing and requested is not None:
        raise SettingError(
            f"drafter {kind!r}: {directory} has no {missing[0]}: "
            f"leave it out to draft with {manifest.drafter!r}"
        )
    return KINDS[kind]


def read_draft_ids(directory: Path, where: device | str) -> Tensor | None:
    """Returns the target id of each draft id, int64 [Vd], None where they are the same."""
    path = directory / DRAFT_IDS
    if not path.is_file():
        return None
    from safetensors.torch import load_file

    return load_file(path, device=str(where))["target_ids"]
