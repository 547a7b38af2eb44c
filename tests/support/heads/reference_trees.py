"""Trees of drafts, their acceptance and the text that follows, slowly: no cache, every attention
matrix whole, in float64, a node at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import Gemma4ForCausalLM

from eagle_aot.runtime_runner.decode.shape import Shape
from support.gemma_oracle import oracle_states
from support.heads.reference import ReferenceHead

Path = tuple[int, ...]
"""Tokens after the bonus token."""


@dataclass
class ReferenceText:
    """A text under a target and its head. `rounds` are the trees of each, and what was accepted."""

    model: Gemma4ForCausalLM
    head: ReferenceHead
    taps: Sequence[int]
    text: list[int]
    rounds: list[tuple[set[Path], Path]] = field(default_factory=list)

    def grow(self, shape: Shape) -> None:
        """One round."""
        self.features = self.fused()
        tree = self.listed(shape) if shape.paths is not None else self.likely(shape)
        accepted: Path = ()
        while (step := (*accepted, self.greedy([*self.text, *accepted]))) in tree:
            accepted = step
        self.rounds.append((tree, accepted))
        self.text += [*accepted, step[-1]]

    def fused(self) -> Tensor:
        """Return what the head reads of the target at each position of the text, [T, H]."""
        _, states = oracle_states(self.model, torch.tensor([self.text]))
        return self.head.fuse(torch.cat([states[tap] for tap in self.taps], dim=-1))

    def greedy(self, text: list[int]) -> int:
        logits, _ = oracle_states(self.model, torch.tensor([text]))
        return int(logits[-1].argmax())

    def likely(self, shape: Shape) -> set[Path]:
        """Return the best paths; at each depth only the best ones are continued."""
        score: dict[Path, float] = {}
        newest: dict[Path, float] = {(): 0.0}
        for _ in range(shape.depth):
            best = sorted(newest, key=lambda path: -newest[path])[: shape.topk]
            newest = {
                (*path, token): newest[path] + logp
                for path in best
                for token, logp in self.children(path)[: shape.topk]
            }
            score |= newest
        return set(sorted(score, key=lambda path: -score[path])[: shape.nodes])

    def listed(self, shape: Shape) -> set[Path]:
        """The tree of a shape's own paths."""
        assert shape.paths is not None
        found: dict[tuple[int, ...], Path] = {(): ()}
        for ranks in shape.paths:
            before = found[ranks[:-1]]
            found[ranks] = (*before, self.children(before)[ranks[-1]][0])
        return set(found.values()) - {()}

    def children(self, path: Path) -> list[tuple[int, float]]:
        """Return all tokens of the head after a path, with their log probabilities."""
        following = [*self.text[1:], *path]
        features = self.features[:-1]  # of the slots that are committed
        for _ in path:
            features = torch.cat((features, self.run(following, features)[1][-1:]))
        logp = self.run(following, features)[0][-1].log_softmax(-1)
        ids = self.target_ids(len(logp))
        order = logp.argsort(descending=True)
        return list(zip(ids[order].tolist(), logp[order].tolist(), strict=True))

    def target_ids(self, count: int) -> Tensor:
        """Return the target's ids of the head's, int64 [Vd]."""
        return torch.arange(count) + self.head.tensors["d2t"].long()

    def run(self, following: list[int], features: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.tensor(following[: len(features)])
        return self.head.run(self.head.tensors["embed_tokens.weight"][tokens], features)
