"""What a pair is made of, as it was asked for."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from eagle_aot.common.errors import CheckpointNotFoundError, SettingError
from eagle_aot.export.drafters.quant import DRAFT_QUANTS, NONE
from eagle_aot.export.loading.provenance import Provenance
from eagle_aot.targets import get_target, model_type
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.int4.quantise import SCHEMES
from eagle_aot.targets.place import is_checkpoint, no_checkpoint
from eagle_aot.targets.registry import AUTO as AUTO_TARGET

AUTO, DUMMY = "auto", "dummy"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A line of the target table and two directories, None where random weights need none.

    Instead of a directory a target may be a GGUF file.
    """

    target_model: str
    target_dir: Path | None = None
    draft_dir: Path | None = None
    load_format: str = AUTO
    dummy_layers: int | None = None
    tap_layers: tuple[int, ...] | None = None
    quantize: str | None = None
    draft_quant: str = NONE

    @classmethod
    def find(
        cls,
        target_model: str,
        target_dir: Path | None,
        draft_dir: Path | None,
        load_format: str,
        dummy_layers: int | None = None,
        tap_layers: tuple[int, ...] | None = None,
        quantize: str | None = None,
        draft_quant: str = NONE,
    ) -> "Source":
        """The pair as asked for, completed from the table, checked before anything is loaded.

        `target_model` "auto" becomes the `model_type` in the directory's config.json. A head is
        only taken from the table together with its target. `tap_layers` are boundaries that
        overrule what the head's checkpoint says; `quantize` names a scheme for the target's dense
        linears, `draft_quant` one of `DRAFT_QUANTS` for the head's. Raises SettingError for an
        unknown target or scheme or a directory that must be named, CheckpointNotFoundError for one
        that does not exist, UnsupportedError for a target that is known and refused.
        """
        if target_model == AUTO_TARGET and target_dir is not None and load_format != DUMMY:
            target_model = model_type(Checkpoint(target_dir))
        spec = get_target(target_model)
        if load_format == DUMMY and (target_dir or draft_dir):
            raise SettingError(
                f"--load-format dummy builds the geometry of {target_model}: "
                "leave out --target-dir and --draft-dir"
            )
        if load_format == DUMMY and spec.dummy is None:
            raise SettingError(
                f"--load-format dummy: {target_model} has no geometry of its own, "
                "name a target of --list-targets"
            )
        if load_format == DUMMY and tap_layers is not None:
            raise SettingError("--tap-layers: a dummy taps where public heads do")
        if load_format == DUMMY and quantize is not None:
            raise SettingError("--quantize: a dummy is INT4 already")
        if quantize is not None and quantize not in SCHEMES:
            raise SettingError(f"--quantize {quantize}: known are {', '.join(SCHEMES)}")
        if draft_quant not in DRAFT_QUANTS:
            raise SettingError(f"--draft-quant {draft_quant}: known are {', '.join(DRAFT_QUANTS)}")
        if load_format != DUMMY and dummy_layers is not None:
            raise SettingError("--dummy-layers: a checkpoint has its own; use --load-format dummy")
        if target_dir is None:
            target_dir, draft_dir = spec.target_dir, draft_dir or spec.draft_dir
        for flag, directory in (("--target-dir", target_dir), ("--draft-dir", draft_dir)):
            if directory is None and load_format != DUMMY:
                raise SettingError(f"{flag} is needed: {target_model} is read from a directory")
            is_file = flag == "--target-dir" and directory is not None and directory.is_file()
            if directory is not None and not directory.is_dir() and not is_file:
                raise CheckpointNotFoundError(f"{flag} {directory}: no such directory")
        if target_dir is not None and not is_checkpoint(target_dir):
            raise CheckpointNotFoundError(f"--target-dir {no_checkpoint(target_dir)}")
        return cls(
            target_model=target_model,
            target_dir=target_dir,
            draft_dir=draft_dir,
            load_format=load_format,
            dummy_layers=dummy_layers,
            tap_layers=tap_layers,
            quantize=quantize,
            draft_quant=draft_quant,
        )

    @property
    def is_dummy(self) -> bool:
        """Whether its weights are random."""
        return self.load_format == DUMMY

    @cached_property
    def provenance(self) -> Provenance:
        """What its directories hold beside weights, each read once."""
        return Provenance(self.target_dir, self.draft_dir, self.is_dummy)
