"""Opening an artifact."""

from collections.abc import Callable
from pathlib import Path

from eagle_aot.artifact import COPY_ROWS, Constants, Manifest, program_names
from eagle_aot.common.errors import ArtifactError
from eagle_aot.runtime_runner.drafters import names_of
from eagle_aot.runtime_runner.drafters.opened import OpenedDrafter
from eagle_aot.runtime_runner.engine.engine import PROMPT_SHARE
from eagle_aot.runtime_runner.executors import Executor, open_program
from eagle_aot.runtime_runner.executors.renamed import Renamed
from eagle_aot.runtime_runner.prompts.seeds import HeadSeeds
from eagle_aot.runtime_runner.runner import Runner


def load_artifact(
    path: str | Path,
    executor: str = "auto",
    *,
    cuda_graphs: bool = True,
    drafter: str | None = None,
    prompt_share: float = PROMPT_SHARE,
    reuse: bool = True,
    verify: Callable[[Manifest, Path], None] = Manifest.verify,
) -> Runner:
    """Open an artifact directory for running.

    With `cuda_graphs`, an executor on a GPU records rounds and replays them. `drafter` names one
    that the artifact holds, or "ngram", which needs nothing of it; with "auto" texts have whichever
    of all these is fastest, and with None the first one. `prompt_share` is how much of
    the time prompts may take from texts that run beside them. Without `reuse` no prompt goes on
    from rows that a cache holds, whatever is asked for.

    Its files must match the manifest's hashes, as `verify` finds, and its constants the manifest's.
    Raises ArtifactError for an artifact that is damaged, of another version or with a drafter that
    is not known here, SettingError for a drafter that needs what the artifact does not have, and
    UnsupportedError for an executor that does not fit it.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise ArtifactError(f"{directory}: no such artifact directory")
    manifest = Manifest.read(directory)
    verify(manifest, directory)
    names = names_of(manifest, directory, drafter)
    opened = open_program(
        directory,
        manifest,
        executor,
        methods=program_names(manifest, names[0]) if len(names) == 1 else None,
        cuda_graphs=cuda_graphs,
    )
    constants = Constants.from_methods(opened.constants())
    if constants.methods() != manifest.constants:
        raise ArtifactError(f"{directory}: the program's constants are not the manifest's")
    images = manifest.images
    seeds = HeadSeeds(opened, images) if images is not None and images.seeds_head else None
    for_all: Executor = seeds or opened
    executors = (
        {names[0]: for_all}
        if len(names) == 1
        else {name: Renamed(for_all, program_names(manifest, name)) for name in names}
    )
    found = constants, directory, manifest
    return Runner(
        directory,
        opened,
        constants,
        {name: OpenedDrafter.of(name, one, *found) for name, one in executors.items()},
        prompt_share,
        copies=COPY_ROWS in manifest.methods,
        reuse=reuse,
        images=images,
        seeds=seeds,
    )
