"""What an export asks of a drafter, whatever its kind."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.decoder.kv_cache import CacheSpec

if TYPE_CHECKING:
    from eagle_aot.export.drafters.files import HeadCheckpoint
    from eagle_aot.export.drafters.target_facts import TargetFacts
    from eagle_aot.export.lengths import MethodLengths
    from eagle_aot.export.method_spec import MethodSpec
    from eagle_aot.export.pair import Pair
    from eagle_aot.export.self_test.text import Reading

Facts = dict[str, Any]
"""JSON, each fact with what decided it."""


class DraftModel(Protocol):
    """A loaded drafter, an `nn.Module` beside its target.

    `kind` names its line of the registry, here and in an artifact. `target_ids` int64 [Vd] are the
    target's ids of its own. `tap_layers` are the boundaries of the target that `fuse` reads, and
    `hidden_size` is the width of the features that it returns; none and 0 where it reads nothing of
    its target. `default_chain_len` drafts a round are what its checkpoint proposes, None where it
    says nothing.
    """

    kind: str
    target_ids: Tensor

    @property
    def tap_layers(self) -> tuple[int, ...]: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def default_chain_len(self) -> int | None: ...

    def check_target(self, target: TapTarget) -> None:
        """Raise PairingError where it was made for another target."""

    def fuse(self, taps: Tensor) -> Tensor:
        """What the target's methods return for it: taps [1, T, n_taps * Ht] -> [1, T, H]."""

    def reset_cache(self) -> None:
        """Forget all sequences."""


class DrafterKind(Protocol):
    """A line of the registry: a module that knows one kind of drafter."""

    def without_checkpoint(
        self, spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
    ) -> tuple[DraftModel, Facts]:
        """The drafter where no checkpoint is read, and the facts that `HeadKind.load` returns.

        A head has random weights then, in the geometry that public ones have for such a target.
        """

    def methods(
        self, pair: "Pair", lengths: "MethodLengths", splits_keys: bool
    ) -> "dict[str, MethodSpec]":
        """What it adds to the target's methods, by name, in the order of their use.

        Those of few rows should read caches by the operator for them where `splits_keys` says so
        and the operator serves their shapes.
        """


class HeadKind(DrafterKind, Protocol):
    """One whose drafters are models with checkpoints of their own."""

    def claims(self, checkpoint: "HeadCheckpoint") -> bool:
        """Whether a checkpoint is of this kind; nothing is refused yet."""

    def load(
        self,
        checkpoint: "HeadCheckpoint",
        target: TapTarget,
        dtype: torch.dtype,
        caches: CacheSpec,
        tap_layers: Sequence[int] | None,
    ) -> tuple[DraftModel, Facts]:
        """The drafter on the host, and for the manifest how its files were understood.

        `tap_layers` overrule what they say. Raises CheckpointError for damaged files,
        UnsupportedError for what is not read, PairingError where it cannot belong to `target`.
        """

    def describe(
        self,
        checkpoint: "HeadCheckpoint",
        target: "TargetFacts | None",
        tap_layers: Sequence[int] | None,
    ) -> Facts:
        """How a checkpoint is understood, without loading it; raises what loading would."""

    def report(self, description: Facts) -> list[str]:
        """A description as lines for a reader."""

    def readings(self, pair: "Pair") -> "Iterator[Reading]":
        """Yield the ways in which the drafter's files can be read, for a self-test.

        The first one is what an export takes. They may use all caches of the pair.
        """
