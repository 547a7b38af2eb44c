"""A drafter of an opened artifact."""

from dataclasses import dataclass, replace
from pathlib import Path

from eagle_aot.artifact import Constants, Manifest, alone, record_of
from eagle_aot.runtime_runner.adaptive.backlog import LateDrafter
from eagle_aot.runtime_runner.drafters import kind_of, read_draft_ids
from eagle_aot.runtime_runner.executors import Executor


@dataclass(frozen=True, slots=True)
class OpenedDrafter:
    """`constants` are the program's with its own chain length; of what the target's methods return
    for all drafters it reads `columns`, everything where that is None."""

    drafter: LateDrafter
    constants: Constants
    columns: slice | None = None

    @classmethod
    def of(
        cls,
        name: str,
        executor: Executor,
        constants: Constants,
        directory: Path,
        manifest: Manifest,
    ) -> "OpenedDrafter":
        """The one of this name, whose methods `executor` knows as if there were no other. Raises as
        `kind_of` does."""
        record, own = record_of(manifest, name), alone(manifest, name)
        make = kind_of(own, directory, None if record else name)
        ids = read_draft_ids(directory, executor.device, name if record else None)
        if record is None:
            return cls(make(executor, constants, ids, own), constants)
        constants = replace(constants, chain_len=record.chain_len)
        columns = slice(record.first_feature, record.first_feature + record.features)
        return cls(make(executor, constants, ids, own), constants, columns)
