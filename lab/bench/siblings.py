"""What choosing drafts by their experts could save: `python -m eagle_aot.lab.bench.siblings`.

Some drafts of a round may be any of twice as many that are equally likely to be accepted. An
oracle, which knows the experts of each in all layers, takes those that add the fewest; others are
taken as they come. Routes are of random routers, uneven as those of dummies. The rows of a text
have a part of their scores in common, and rows of one of eight kinds another part.
"""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from eagle_aot.targets.decoder.weights import ROUTER_SPREAD

EXPERTS, TOP_K, LAYERS, KINDS, TEXTS = 128, 8, 30, 8, 64
ROUNDS = (8, 2), (8, 4), (16, 4), (16, 8), (32, 8)
"""Rows of a round, and how many of them have siblings to choose from."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """Shares of the variance of a row's scores that it has in common with its text and its kind."""

    text: float
    kind: float


def routes(rows: int, like: Likeness) -> Tensor:
    """Return which experts rows take, bool [texts, layers, rows, E]."""
    shape = TEXTS, LAYERS, rows, EXPERTS
    deviations = (ROUTER_SPREAD * torch.randn(TEXTS, LAYERS, 1, EXPERTS)).exp()
    kinds = torch.randint(KINDS, (TEXTS, 1, rows, 1)).expand(shape)
    of_kind = torch.randn(TEXTS, LAYERS, KINDS, EXPERTS).gather(2, kinds)
    scores = like.text**0.5 * torch.randn(TEXTS, LAYERS, 1, EXPERTS) + like.kind**0.5 * of_kind
    scores = scores + (1 - like.text - like.kind) ** 0.5 * torch.randn(shape)
    ids = (scores * deviations).topk(TOP_K).indices
    return torch.zeros(shape, dtype=torch.bool).scatter_(-1, ids, True)


def distinct(taken: Tensor) -> Tensor:
    """Return the mean number of experts a layer, [texts], of experts [texts, layers, E]."""
    return taken.sum(-1).float().mean(1)


def chosen(rows: int, free: int, like: Likeness) -> tuple[float, float]:
    """Return experts a layer of `rows` rows as they come, and with the last `free` of them chosen
    by the oracle among twice as many."""
    taken = routes(rows + free, like)
    usual, best = taken[:, :, :rows].any(2), taken[:, :, : rows - free].any(2)
    siblings, texts = taken[:, :, rows - free :], torch.arange(TEXTS)
    left = torch.ones(TEXTS, 2 * free, dtype=torch.bool)
    for _ in range(free):
        added = (siblings & ~best[:, :, None]).sum((1, 3)).float()
        pick = added.where(left, torch.inf).argmin(1)
        left[texts, pick] = False
        best = best | siblings[texts, :, pick]
    return float(distinct(usual).mean()), float(distinct(best).mean())


def main() -> None:
    """Print experts a layer with and without the oracle, for texts of several likenesses."""
    torch.manual_seed(0)
    for text, kind in product((0.0, 0.15), (0.0, 0.2, 0.4)):
        like = Likeness(text, kind)
        grown = (distinct(routes(rows, like).any(2)).mean() / TOP_K for rows in (2, 5, 9))
        print(f"\nshared by a text {text}, by a kind {kind}: 2, 5, 9 rows take",
              *(f"{ratio:.2f}" for ratio in grown), "times the experts of one")  # fmt: skip
        for rows, free in ROUNDS:
            usual, best = chosen(rows, free, like)
            print(f"{rows:3} rows, {free} chosen: {usual:5.1f} -> {best:5.1f} experts a layer, "
                  f"{1 - best / usual:.1%} fewer")  # fmt: skip


if __name__ == "__main__":
    main()
