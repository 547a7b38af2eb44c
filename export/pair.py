"""A target and what drafts for it."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.protocol import Drafter
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.pictures import Pictures

DRAFT = "draft"


class Paired(nn.Module):
    """Base: a target and its drafters under the names that they have wherever they stand together,
    so that weights and caches are one in all methods: `target.*`, and `draft.*` or, of several
    drafters, `draft_NAME.*`."""

    target: TapTarget

    def __init__(
        self, target: TapTarget, drafts: Mapping[str, Drafter], places: Mapping[str, str]
    ) -> None:
        """`drafts` by their names, and how the module of each is called."""
        super().__init__()
        self.target, self._places = target, dict(places)
        for name, draft in drafts.items():
            setattr(self, places[name], draft)

    @property
    def drafts(self) -> dict[str, Drafter]:
        """By their names."""
        return {name: cast(Drafter, self._modules[at]) for name, at in self._places.items()}

    @property
    def draft(self) -> Drafter:
        """The first, which is the only one unless there are several."""
        return next(iter(self.drafts.values()))

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """The boundaries that any drafter reads, lowest first."""
        return tuple(sorted({b for draft in self.drafts.values() for b in draft.tap_layers}))

    def features(self, taps: Tensor) -> tuple[Tensor, ...]:
        """What drafters read of rows, if any reads something: taps [1, T, n_taps * Ht] ->
        [1, T, H], theirs side by side."""
        readers = [draft for draft in self.drafts.values() if draft.tap_layers]
        found = [draft.fuse(self._tapped(taps, draft)) for draft in readers]
        return (torch.cat(found, dim=-1) if len(found) > 1 else found[0],) if found else ()

    def _tapped(self, taps: Tensor, draft: Drafter) -> Tensor:
        """Of the boundaries that any reads those of one."""
        every = self.tap_layers
        if every == tuple(draft.tap_layers):
            return taps
        width = taps.shape[-1] // len(every)
        firsts = [every.index(boundary) * width for boundary in draft.tap_layers]
        return torch.cat([taps[..., first : first + width] for first in firsts], dim=-1)


class Pair(Paired):
    """Modules that an artifact is made of, and `vision.*` where the target is to read
    `pictures`."""

    def __init__(
        self,
        target: TapTarget,
        draft: Drafter | Mapping[str, Drafter],
        pictures: Pictures | None = None,
    ) -> None:
        """One drafter, or several by their names. Raises PairingError when one cannot read this
        target."""
        if not isinstance(target, TapTarget) or not isinstance(target, nn.Module):
            raise PairingError(f"{type(target).__name__} is not a TapTarget module")
        drafts = draft if isinstance(draft, Mapping) else {draft.kind: draft}
        for name, one in drafts.items():
            check_fits(one, target, name if len(drafts) > 1 else None)
        only = len(drafts) == 1
        super().__init__(target, drafts, {n: DRAFT if only else place_of(n) for n in drafts})
        target.set_eagle_tap_layers(self.tap_layers)
        self.vision = None if pictures is None else pictures.encoder
        self.picture_tokens = None if pictures is None else pictures.tokens
        self.sees_whole = pictures is not None and pictures.sees_whole
        if pictures is not None:
            assert isinstance(target, Gemma4Target)
            target.suppress(pictures.tokens.never)

    def of(self, name: str) -> "Pair":
        """The same modules, of the drafters this one alone, under the names that they have here."""
        part = copy.copy(self)
        others = {place for other, place in self._places.items() if other != name}
        part._modules = {at: one for at, one in self._modules.items() if at not in others}
        part._places = {name: self._places[name]}
        return part

    @contextmanager
    def tapped_by(self, name: str) -> Iterator["Pair"]:
        """The target with one of its drafters, as a pair of which its boundaries alone are tapped,
        for as long as this lasts."""
        part = self.of(name)
        self.target.set_eagle_tap_layers(part.tap_layers)
        try:
            yield part
        finally:
            self.target.set_eagle_tap_layers(self.tap_layers)

    @property
    def weight_bytes(self) -> int:
        """Of all weights, what is shared once."""
        holders = [module for module in self.modules() if not isinstance(module, KVCache)]
        held = [(*m.parameters(recurse=False), *m.buffers(recurse=False)) for m in holders]
        storages = [tensor.untyped_storage() for tensors in held for tensor in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def reset_cache(self) -> None:
        """Forget all sequences."""
        self.target.reset_cache()
        for draft in self.drafts.values():
            draft.reset_cache()


class Method(Paired):
    """Base: a method of a pair's artifact, over the same children as all others.

    So weights and caches keep one name in every method and can be shared between them. Methods only
    compute: choosing tokens, accepting drafts, stopping and budgets belong to the runner.
    """

    def __init__(self, pair: Pair, splits_keys: bool = False) -> None:
        super().__init__(pair.target, pair.drafts, pair._places)
        self.splits_keys = splits_keys


def place_of(drafter: str) -> str:
    """How the module of one of several drafters is called."""
    return f"{DRAFT}_{drafter.replace('-', '_')}"


def check_fits(draft: Drafter, target: TapTarget, name: str | None = None) -> None:
    """Raise PairingError, with its name where there is one, for a drafter of another target."""
    try:
        draft.check_target(target)
        check_draft_ids(draft, target)
    except PairingError as error:
        raise (error if name is None else PairingError(f"drafter {name}: {error}")) from error


def check_draft_ids(draft: Drafter, target: TapTarget) -> None:
    """Raise PairingError where the drafter proposes ids that the target does not have."""
    low, high = _id_range(draft.target_ids)
    if low < 0 or high >= target.vocab_size:
        raise PairingError(
            f"the head's d2t reaches ids {low}..{high}, the target has {target.vocab_size}: "
            "not a matched pair"
        )


def _id_range(ids: Tensor) -> tuple[int, int]:
    if isinstance(ids, FakeTensor):
        return 0, 0  # a graph check holds no values
    return int(ids.min()), int(ids.max())
