"""The interfaces of draft models and of kinds of drafters."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from eagle_aot.export.drafters.description import Facts
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.decoder.kv_cache import CacheSpec

if TYPE_CHECKING:
    from eagle_aot.export.drafters.target_facts import TargetFacts
    from eagle_aot.export.lengths import MethodLengths
    from eagle_aot.export.method_spec import MethodSpec
    from eagle_aot.export.pair import Pair
    from eagle_aot.export.self_test.text import Reading
    from eagle_aot.targets.checkpoint import Checkpoint


class DraftModel(Protocol):
    """A loaded drafter, an `nn.Module`.

    `kind` is its name in the registry and in artifacts. `target_ids` int64 [Vd] has the target's id
    of each of its ids. `tap_layers` are the target's boundaries that `fuse` reads, `hidden_size` is
    the width of the features that it returns; empty and 0 for a drafter that reads no features.
    `default_chain_len` is the number of drafts per round that its checkpoint proposes, if any.
    """

    kind: str
    target_ids: Tensor
    tap_layers: tuple[int, ...]
    hidden_size: int
    default_chain_len: int | None

    def check_target(self, target: TapTarget) -> None:
        """Raise PairingError if the drafter was made for another target."""

    def fuse(self, taps: Tensor) -> Tensor:
        """Map taps [1, T, n_taps * Ht] to features [1, T, H], which the target's methods return."""

    def reset_cache(self) -> None:
        """Empty the caches of all sequences."""


@runtime_checkable
class SharesRows(Protocol):
    """A draft model by whose confidence the texts of a batch share the rows of a step, in up to
    `lines` times as many lines as there are texts."""

    lines: int


class DrafterKind(Protocol):
    """An entry of the registry: the Python module of one kind of drafter."""

    def without_checkpoint(
        self, spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
    ) -> tuple[DraftModel, Facts]:
        """Make a drafter without a checkpoint, and facts as `HeadKind.load` returns them.

        A head has random weights, in the geometry of public heads for such a target.
        """

    def methods(
        self, pair: "Pair", lengths: "MethodLengths", use_splitk: bool
    ) -> "dict[str, MethodSpec]":
        """Return the methods that the drafter adds to the target's, in the order of their use.

        With `use_splitk`, methods of few rows read caches by the project's operator if it has a
        kernel for their shapes.
        """


class HeadKind(DrafterKind, Protocol):
    """A kind whose drafters are models with checkpoints."""

    def claims(self, checkpoint: "Checkpoint") -> bool:
        """Return whether a checkpoint is of this kind; `load` may still refuse it."""

    def load(
        self,
        checkpoint: "Checkpoint",
        target: TapTarget,
        dtype: torch.dtype,
        caches: CacheSpec,
        tap_layers: Sequence[int] | None,
    ) -> tuple[DraftModel, Facts]:
        """Load the drafter on the host; return it with the facts that a manifest records.

        `tap_layers` replace the checkpoint's. Raises CheckpointError for damaged files,
        UnsupportedError for unknown options, PairingError for a head of another target.
        """

    def describe(
        self,
        checkpoint: "Checkpoint",
        target: "TargetFacts | None",
        tap_layers: Sequence[int] | None,
    ) -> Facts:
        """Describe how a checkpoint is read, without loading it. Raises what `load` would raise for
        the parts that are read."""

    def readings(self, pair: "Pair") -> "Iterator[Reading]":
        """Yield the ways in which the drafter's files can be read, for a self-test.

        The first one is the export's. Readings may use all caches of the pair.
        """
