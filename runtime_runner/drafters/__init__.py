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
    alone,
    drafters_of,
)
from eagle_aot.artifact.drafted_block import block_size
from eagle_aot.common.errors import ArtifactError, SettingError
from eagle_aot.runtime_runner.adaptive.backlog import LateDrafter
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.drafters.gemma4_assistant import AssistantDrafter
from eagle_aot.runtime_runner.drafters.ngram import NgramDrafter
from eagle_aot.runtime_runner.drafters.peagle import PEagleDrafter
from eagle_aot.runtime_runner.executors import Executor
from eagle_aot.runtime_runner.options import AUTO_DRAFTER

Make = Callable[[Executor, Constants, Tensor | None, Manifest], LateDrafter]
"""From an opened program, its constants, the target's ids of the drafter's, and the manifest of an
artifact that holds no other."""


def eagle3(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> LateDrafter:
    """The artifact's draft head."""
    return Eagle3Drafter(executor, constants, ids, DRAFT_PREFILL in manifest.methods)


def peagle(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> LateDrafter:
    """The artifact's head, which drafts in parallel."""
    return PEagleDrafter(executor, constants, ids, DRAFT_PREFILL in manifest.methods)


def gemma4_assistant(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> LateDrafter:
    """The artifact's assistant, whose ids are the target's."""
    return AssistantDrafter(executor, constants, ids)


def dflash(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> LateDrafter:
    """The artifact's head, whose blocks are as long as its manifest says."""
    return DFlashDrafter(executor, constants, ids, block_size(manifest))


def ngram(
    executor: Executor, constants: Constants, ids: Tensor | None, manifest: Manifest
) -> LateDrafter:
    """Prompt lookup, which needs nothing of the artifact."""
    return NgramDrafter(constants, executor.device)


KINDS: dict[str, Make] = {
    EAGLE3: eagle3,
    P_EAGLE: peagle,
    GEMMA4_ASSISTANT: gemma4_assistant,
    DFLASH: dflash,
    NGRAM: ngram,
}
"""By the name in a manifest."""


def names_of(manifest: Manifest, directory: Path, asked: str | None = None) -> tuple[str, ...]:
    """The drafter asked for by its name, the first one where that is None, or all that the artifact
    holds and prompt lookup for "auto". Raises as `kind_of` does, for one that it does not hold
    beside others, too."""
    held = drafters_of(manifest)
    if manifest.drafters is not None and asked not in (None, AUTO_DRAFTER, NGRAM, *held):
        raise SettingError(
            f"drafter {asked!r}: {directory} has {', '.join(held)}, and {NGRAM} needs nothing of it"
        )
    every = tuple(dict.fromkeys((*held, NGRAM)))
    names = every if asked == AUTO_DRAFTER else held[:1] if asked is None else (asked,)
    for name in names:
        own = name in held and (asked in (None, AUTO_DRAFTER) or manifest.drafters is not None)
        kind_of(alone(manifest, name), directory, None if own else name)
    return names


def kind_of(manifest: Manifest, directory: Path, asked: str | None = None) -> Make:
    """What makes the drafter asked for, or the artifact's own where that is None.

    Raises ArtifactError for one of the artifact that is not known here, and SettingError for one
    that is asked for and not known, or needs a method that the artifact does not have.
    """
    kind = manifest.drafter if asked is None else asked
    if kind not in KINDS and asked is None:
        raise ArtifactError(
            f"{directory}: its drafter {kind!r} is not known to this runner, which has "
            f"{', '.join(KINDS)}: run it with the version that exported it"
        )
    if kind not in KINDS:
        raise SettingError(f"drafter {kind!r} is not known: there are {', '.join(KINDS)}")
    missing = [method for method in DRAFTERS[kind] if method not in manifest.methods]
    if missing and asked is not None:
        raise SettingError(
            f"drafter {kind!r}: {directory} has no {missing[0]}: "
            f"leave it out to draft with {manifest.drafter!r}"
        )
    return KINDS[kind]


def read_draft_ids(
    directory: Path, where: device | str, drafter: str | None = None
) -> Tensor | None:
    """The target's ids of the drafter's, int64 [Vd], which is named if it is one of several; None
    where they are the same."""
    path = directory / DRAFT_IDS
    if not path.is_file():
        return None
    from safetensors.torch import load_file

    name = "target_ids" if drafter is None else f"{drafter}.target_ids"
    return load_file(path, device=str(where)).get(name)
