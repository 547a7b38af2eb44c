"""Opening an artifact."""

from collections.abc import Callable
from pathlib import Path

from eagle_aot.artifact import COPY_ROWS, COPY_STATES, MANIFEST, Constants, Manifest
from eagle_aot.artifact.locate import local_artifact
from eagle_aot.artifact.verified import Snapshot
from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.text import nearest
from eagle_aot.runtime_runner.drafters import drafter_factory, read_draft_ids
from eagle_aot.runtime_runner.engine.engine import PROMPT_SHARE
from eagle_aot.runtime_runner.program.executor import open_program
from eagle_aot.runtime_runner.runner import Runner


def load_artifact(
    path: str | Path,
    executor: str = "auto",
    *,
    cuda_graphs: bool = True,
    drafter: str | None = None,
    prompt_share: float = PROMPT_SHARE,
    reuse: bool = True,
    cache_memory: int | None = None,
    verify: Callable[[Manifest, Path], None] = Manifest.verify,
) -> Runner:
    """Open an artifact for running: a directory, or a repository on the Hugging Face Hub, ORG/NAME.

    With `cuda_graphs`, an executor on a GPU records rounds and replays them. `drafter` is the kind
    of drafter to use: the artifact's own one, which is the default, or "ngram", prompt lookup, for
    which the artifact needs nothing. `prompt_share` is the share of time that prompts may take from
    running requests. Without `reuse` no prompt continues from cached rows, whatever its parameters
    say. On a GPU caches take at most `cache_memory` bytes, all that is free by default: where that
    is too little for all sequences, texts share it.

    Its files must match the manifest's hashes, as `verify` finds, and not change until they are
    read, and its constants must be the manifest's.
    Raises ArtifactError for an artifact that is damaged, of another version or with a drafter that
    is not known here, HubError for one that cannot be downloaded, SettingError for a drafter that
    needs what the artifact does not have, and UnsupportedError for an executor that does not fit.
    """
    directory = local_artifact(path)
    if not directory.is_dir():
        siblings = (path.parent.name for path in directory.parent.glob(f"*/{MANIFEST}"))
        raise ArtifactError(
            f"{directory}: no such artifact directory{nearest(directory.name, siblings)}"
        )
    manifest = Manifest.read(directory)
    if manifest.has_states and COPY_STATES not in manifest.methods:
        raise ArtifactError(f"{directory}: its states follow no trees: export it again")
    snapshot = Snapshot(manifest, directory)
    verify(manifest, directory)
    make_drafter = drafter_factory(manifest, directory, drafter)
    opened = open_program(
        directory, manifest, executor, cuda_graphs=cuda_graphs, cache_memory=cache_memory
    )
    constants = Constants.from_methods(opened.constants())
    if constants.methods() != manifest.constants:
        raise ArtifactError(f"{directory}: the program's constants are not the manifest's")
    draft_ids = read_draft_ids(directory, opened.device)
    snapshot.check()
    return Runner(
        directory,
        opened,
        constants,
        make_drafter(opened, constants, draft_ids, manifest),
        prompt_share,
        can_copy_rows=COPY_ROWS in manifest.methods,
        has_states=manifest.has_states,
        screens_table=manifest.screens_table,
        reuse=reuse,
        images=manifest.images,
        check=snapshot.check,
    )
