"""Which checkpoints an export reads: the options completed from the table of targets."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from eagle_aot.artifact import MTP
from eagle_aot.common.errors import CheckpointNotFoundError, SettingError
from eagle_aot.common.hub import Repository
from eagle_aot.common.progress import Progress
from eagle_aot.export.drafters.registry import OF_DUMMIES, own_drafter
from eagle_aot.export.loading.locate import locate, locate_config
from eagle_aot.export.loading.provenance import Provenance
from eagle_aot.export.spec import AUTO, DUMMY, NONE, ExportSpec
from eagle_aot.targets import TARGETS, TargetSpec, get_target, model_type
from eagle_aot.targets.checkpoint import read_config
from eagle_aot.targets.checkpoint_path import CONFIG, is_checkpoint, why_no_checkpoint
from eagle_aot.targets.int4.quantise import SCHEMES
from eagle_aot.targets.registry import AUTO as AUTO_TARGET
from eagle_aot.targets.registry import is_registered, target_of


@dataclass(frozen=True)
class ResolvedCheckpoints:
    """The checkpoints of an export.

    `spec` names the target, its directory, the head's directory and the drafter. A directory is
    None where nothing is read, and `spec.drafter` is "auto" where the head's files decide.
    """

    spec: ExportSpec

    @cached_property
    def target(self) -> TargetSpec:
        """What the target is: for a dummy in a directory, what its config says. Raises
        CheckpointError and UnsupportedError."""
        line, spec = get_target(target_name(self.spec)), self.spec
        if not spec.is_dummy or spec.target_dir is None:
            return line
        group_size = None if spec.quantize is None else SCHEMES[spec.quantize].group_size
        of_config = target_of(spec.target_dir, group_size)
        return dataclasses.replace(of_config, name=line.name, draft_dir=line.draft_dir)

    @cached_property
    def provenance(self) -> Provenance:
        """Everything but weights that is read of the directories, each file once."""
        return Provenance(self.spec.target_dir, self.spec.draft_dir, self.spec.is_dummy)


def resolve_checkpoints(spec: ExportSpec, progress: Progress | None = None) -> ResolvedCheckpoints:
    """Complete the target's name, directories and drafter, before anything is loaded.

    Repositories are downloaded, each as a stage of the progress. `target_model` "auto" becomes the
    `model_type` in the directory's config.json. A target without a named head has the table's, or
    its own checkpoint's; without any, `drafter` "auto" becomes ngram. A check of a registered
    target or a repository is one of a dummy, unless a head is named. Raises SettingError for an
    unknown target, for options that contradict each other and for a directory that is required,
    CheckpointNotFoundError for one that does not exist, UnsupportedError for a target that is known
    and refused, HubError.
    """
    if spec.target_model is None:
        raise SettingError("--target-model is required (see eagle-inspect targets)")
    if spec.check_only and not _names_checkpoint(spec):
        spec = replace(spec, load_format=DUMMY)
    resolved = _of_dummy(spec) if spec.is_dummy else _of_directories(locate(spec, progress))
    if not resolved.has_head:
        check_no_head(resolved)
    checkpoints = ResolvedCheckpoints(resolved)
    _ = checkpoints.target  # reads files, which tracing with fake tensors cannot
    return checkpoints


def _names_checkpoint(spec: ExportSpec) -> bool:
    """Whether weights are requested, not only the geometry of a registered target or of a
    repository."""
    name = target_name(spec)
    if any((spec.target_dir, spec.draft_dir, spec.draft_model)):
        return True
    if is_registered(name):
        line = TARGETS.get(name)
        return line is None or line.repository is None or spec.revision is not None
    return Path(name).exists() or Repository.parse(name) is None


def refuse(*cases: tuple[object, str]) -> None:
    """Raise SettingError with the message of the first case whose condition holds."""
    for condition, message in cases:
        if condition:
            raise SettingError(message)


def _of_dummy(spec: ExportSpec) -> ExportSpec:
    """Complete an export of random weights. Raises SettingError for options of checkpoints, and as
    `locate_config` does."""
    refuse(
        (
            spec.draft_dir or spec.draft_model,
            "--load-format dummy: a head has random weights, too: leave out --draft-model and "
            "--draft-dir, --drafter names its kind",
        ),
        (spec.tap_layers is not None, "--tap-layers: a dummy taps where public heads do"),
    )
    located = locate_config(spec)
    if located.target_dir is None:
        _check_registered_dummy(located)
    else:
        located = _with_name(located)
        check_target_dir(located)
    return replace(located, drafter=OF_DUMMIES) if spec.drafter == AUTO else located


def _check_registered_dummy(spec: ExportSpec) -> None:
    """Raise SettingError for a name without geometry, and for options of directories."""
    name = target_name(spec)
    refuse(
        (
            get_target(name).dummy is None,
            f"--load-format dummy: {name} has no geometry of its own, name a target that "
            "eagle-inspect targets lists, a repository or a path",
        ),
        (spec.revision, f"--revision: --load-format dummy reads nothing of {name}: leave it out"),
        (spec.quantize is not None, "--quantize: a dummy is INT4 already"),
    )


def _of_directories(spec: ExportSpec) -> ExportSpec:
    """Complete an export of checkpoints. Raises as `resolve_checkpoints` does."""
    if spec.dummy_layers is not None:
        raise SettingError("--dummy-layers: a checkpoint has its own; use --load-format dummy")
    resolved = _with_directories(_with_name(spec))
    check_target_dir(resolved)
    if resolved.drafter == AUTO and resolved.draft_dir is None:
        assert resolved.target_dir is not None
        resolved = replace(resolved, drafter=own_drafter(resolved.target_dir))
    if resolved.drafter == MTP and resolved.draft_dir is None:
        resolved = replace(resolved, draft_dir=resolved.target_dir)
    if resolved.has_head:
        check_draft_dir(resolved)
    return resolved


def _with_name(spec: ExportSpec) -> ExportSpec:
    """Replace the target's name "auto" by the one in its config.json."""
    if spec.target_model != AUTO_TARGET or spec.target_dir is None:
        return spec
    return replace(spec, target_model=model_type(read_config(spec.target_dir)))


def _with_directories(spec: ExportSpec) -> ExportSpec:
    """Add the table's directories: a head that ships with its target is for that target only."""
    line = get_target(target_name(spec))
    if spec.target_dir is not None and line.target_dir is not None:
        return spec
    head = spec.draft_dir or (line.draft_dir if spec.has_head else None)
    return replace(spec, target_dir=spec.target_dir or line.target_dir, draft_dir=head)


def target_name(spec: ExportSpec) -> str:
    """Return the target's name of a spec that has one."""
    assert spec.target_model is not None
    return spec.target_model


def check_target_dir(spec: ExportSpec) -> None:
    """Raise SettingError without a target directory, CheckpointNotFoundError for a wrong one."""
    if spec.target_dir is None:
        raise SettingError(f"--target-dir is needed: {spec.target_model} is read from a directory")
    if not is_checkpoint(spec.target_dir):
        raise CheckpointNotFoundError(f"--target-dir {why_no_checkpoint(spec.target_dir)}")


def check_draft_dir(spec: ExportSpec) -> None:
    """Raise SettingError without a head's directory, CheckpointNotFoundError for a wrong one."""
    if spec.draft_dir is None:
        raise SettingError(f"--draft-dir is needed: {spec.drafter} is read from a directory")
    if not spec.draft_dir.is_dir():
        raise CheckpointNotFoundError(f"--draft-dir {spec.draft_dir}: no such directory")
    if not (spec.draft_dir / CONFIG).is_file():
        raise CheckpointNotFoundError(
            f"--draft-dir {spec.draft_dir}: holds no {CONFIG}, so it is no draft head"
        )


def check_no_head(spec: ExportSpec) -> None:
    """Raise SettingError for options of a head where there is none."""
    refuse(
        (spec.draft_dir, f"--drafter {spec.drafter} reads no head: leave out --draft-dir"),
        (spec.tap_layers, "--tap-layers: there is no head, name one with --draft-dir"),
        (spec.draft_quant != NONE, "--draft-quant: there is no head, name one with --draft-dir"),
    )
