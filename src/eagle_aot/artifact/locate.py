"""Artifacts by name: a directory, or a repository on the Hugging Face Hub."""

from collections.abc import Sequence
from pathlib import Path

from eagle_aot.artifact.files import ARTIFACT_FILES, MANIFEST
from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.hub import Repository, download


def local_artifact(name: str | Path, files: Sequence[str] = (MANIFEST, *ARTIFACT_FILES)) -> Path:
    """Return the directory of an artifact. `ORG/NAME[@REVISION]` that is no path here is a
    published one, and `files` of it are downloaded.

    Raises HubError, and ArtifactError for a repository that is no artifact.
    """
    path = Path(name)
    repository = None if path.exists() else Repository.parse(str(path))
    if repository is None:
        return path

    def select(names: Sequence[str]) -> list[str]:
        if MANIFEST not in names:
            raise ArtifactError(
                f"{repository}: not an artifact (no {MANIFEST}): eagle-export --target-model "
                f"{repository} makes one of a checkpoint"
            )
        return [name for name in files if name in names]

    return download(repository, select)


def artifact_name(directory: Path) -> str:
    """Return the name of an artifact's repository, else of its directory."""
    repository = Repository.of_path(directory)
    return directory.resolve().name if repository is None else repository.id
