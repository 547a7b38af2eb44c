"""The ways in which the files of an EAGLE-3 or P-EAGLE head can be read, and how each drafts.

All chains of a text are drafted at once, as in EAGLE-3's training-time test: from an anchor e, step
0 is the committed slot e, and step s is the s-th slot after it, which sees the committed slots up
to e and the steps of its own chain. Every step has the token that the target chose, or the mask of
a P-EAGLE head. Shapes: S slots, A anchors, H draft hidden, Vd draft vocabulary, D head width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from eagle_aot.export.drafters.eagle3.config import Eagle3Wiring
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.pair import Pair
from eagle_aot.export.self_test.text import Reading, TargetText


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Eagle3Reading(Reading):
    """A reading of a head: the boundaries that it taps, and how its parts are connected."""

    draft: Eagle3Draft
    tap_layers: tuple[int, ...]
    wiring: Eagle3Wiring

    @torch.no_grad()
    def chain_logits(self, text: TargetText, steps: int) -> Iterator[Tensor]:
        draft, last = self.draft, text.tokens.shape[1] - 1
        slots = torch.arange(text.slots, device=text.tokens.device)
        anchors = slots[text.first_anchor :]
        feature = self.aligned(draft.fuse(text.taps(self.tap_layers)))
        chains = [LayerChains(draft.config.head_dim**-0.5) for _ in draft.layers]
        positions = seen = slots
        for step in range(steps):
            embedding = draft.embed(text.tokens[:, (positions + 1).clamp(max=last)])
            if step > 0:
                embedding, feature = draft.next_inputs(embedding, feature)
            attends = [partial(chain.attend, seen) for chain in chains]
            stream = draft.stream(embedding, feature, positions, attends, self.wiring)
            if step == 0:
                stream = stream[:, text.first_anchor :]
            logits, feature = draft.read_out(stream, self.wiring)
            yield logits[0]
            positions, seen = anchors + step + 1, anchors


class LayerChains:
    """Keys and values of one layer: those of all slots, then those of one step after another."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(self, seen: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend one step's rows: q [1, T, heads, D], k and v [1, T, kv_heads, D].

        Row t sees the slots up to `seen` int64 [T], and its own row of all later steps. A step may
        have fewer rows than the one before: its first ones.
        """
        q, k, v = (x.transpose(1, 2) for x in (q * self._scale, k, v))
        group = q.shape[1] // k.shape[1]
        self._keys.append(k.repeat_interleave(group, dim=1))
        self._values.append(v.repeat_interleave(group, dim=1))
        keys, *step_keys = self._keys
        values, *step_values = self._values
        slots, rows = keys.shape[2], q.shape[2]
        hidden = torch.arange(slots, device=q.device) > seen.unsqueeze(-1)
        scores = [(q @ keys.transpose(-1, -2)).masked_fill(hidden, float("-inf"))]
        scores += [(q * key[:, :, :rows]).sum(-1, keepdim=True) for key in step_keys]
        weights = torch.cat(scores, dim=-1).float().softmax(-1).to(values.dtype)
        mixed = weights[..., :slots] @ values
        for i, value in enumerate(step_values):
            mixed = mixed + weights[..., slots + i, None] * value[:, :, :rows]
        return mixed.transpose(1, 2)


def readings(pair: Pair) -> Iterator[Eagle3Reading]:
    """Yield the export's reading, and all others, which differ from it in one thing."""
    assert isinstance(pair.draft, Eagle3Draft)
    yield from readings_of(pair.draft, pair.target.num_hidden_layers)


def readings_of(draft: Eagle3Draft, num_layers: int) -> Iterator[Eagle3Reading]:
    """Yield the readings of a head whose target has `num_layers` layers."""
    config = draft.config
    chosen = Eagle3Reading(
        target_ids=draft.target_ids, draft=draft, tap_layers=config.tap_layers, wiring=config.wiring
    )
    yield chosen
    yield from _other_taps(chosen, num_layers)
    yield from _other_vocabularies(chosen, config.vocab_size)
    if config.final_norm and config.mask_token_id is None:
        post = not config.norm_output
        yield replace(
            chosen,
            name=f"feedback {'after' if post else 'before'} the final norm",
            remedy=_config_remedy("return_hidden_post_norm", post),
            wiring=replace(chosen.wiring, norm_output=post),
        )
    yield replace(
        chosen,
        name="halves swapped",
        remedy="swap the column halves of the first layer's q_proj, k_proj and v_proj",
        wiring=replace(chosen.wiring, halves_swapped=True),
    )
    early = not config.norm_before_residual
    yield replace(
        chosen,
        name=f"residual {'after' if early else 'before'} hidden_norm",
        remedy=_config_remedy("norm_before_residual", early),
        wiring=replace(chosen.wiring, norm_before_residual=early),
    )


def _other_taps(chosen: Eagle3Reading, num_layers: int) -> Iterator[Eagle3Reading]:
    """Yield readings with each tap one boundary lower and higher, and with all of them."""
    count = len(chosen.tap_layers)
    moves = [[int(i == j) for j in range(count)] for i in range(count)]
    for move in [*moves, [1] * count] if count > 1 else moves:
        for sign in (-1, 1):
            taps = [tap + sign * step for tap, step in zip(chosen.tap_layers, move, strict=True)]
            if taps == sorted(set(taps)) and 0 <= taps[0] <= taps[-1] <= num_layers:
                names = ",".join(map(str, taps))
                remedy = f"--tap-layers {names}"
                yield replace(chosen, name=f"taps {names}", remedy=remedy, tap_layers=tuple(taps))


def _other_vocabularies(chosen: Eagle3Reading, vocab_size: int) -> Iterator[Eagle3Reading]:
    """Yield readings with `d2t` as ids instead of offsets, and without it, where there is a map."""
    ids = chosen.target_ids
    plain = torch.arange(len(ids), device=ids.device)
    if torch.equal(ids, plain):
        return
    remedy = "d2t holds target ids: store offsets, each id less its index"
    yield replace(chosen, name="d2t as ids", remedy=remedy, target_ids=ids - plain)
    if len(ids) < vocab_size:
        remedy = f"the draft vocabulary is the first {len(ids)} ids: store zeros in d2t, with a t2d"
        yield replace(chosen, name="d2t not applied", remedy=remedy, target_ids=plain)


def _config_remedy(key: str, flag: bool) -> str:
    return f'"{key}": {str(flag).lower()} in the head\'s config.json'
