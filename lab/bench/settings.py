"""What to measure: the command's options, read and checked."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from eagle_aot.artifact import Constants
from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.decode.shape import Shape, check_tree, parse_tree

ALL = "all"
SHORTEST_DEFAULT = 128  # tokens; the default contexts are this times powers of four
DEFAULT_CONTEXTS = 3
DEFAULT_CHAINS = 7  # the longest, where none are named

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Context lengths in tokens, drafts per round, rows to verify of each sequence, how many
    sequences at once, tokens per round to project for, samples per figure, and whether to record
    where that is possible. Before `fitted`, no contexts and no chain lengths mean the artifact's
    own."""

    contexts: tuple[int, ...]
    chain_lens: tuple[int, ...]
    taus: tuple[float, ...]
    repeats: int
    rows: tuple[int, ...] = (1,)
    batch_sizes: tuple[int, ...] = (1,)
    cuda_graphs: bool = True
    trees: tuple[Shape, ...] = ()

    @classmethod
    def parse(
        cls,
        contexts: str | None,
        chain_lens: str,
        tau: str,
        repeats: int,
        cuda_graphs: bool,
        rows: str = "1",
        batch_sizes: str = "1",
        trees: Iterable[str] = (),
    ) -> "Settings":
        """Read comma-separated lists. Raises SettingError for what no artifact could serve."""
        if repeats < 1:
            raise SettingError(f"--repeats {repeats}: must be at least 1")
        taus = numbers("--tau", tau, float)
        if not all(1 <= value < float("inf") for value in taus):
            raise SettingError(f"--tau {tau}: a round emits at least 1 token")
        return cls(
            contexts=() if contexts is None else numbers("--contexts", contexts, int),
            chain_lens=() if chain_lens == ALL else numbers("--chain-lens", chain_lens, int),
            taus=taus,
            repeats=repeats,
            cuda_graphs=cuda_graphs,
            rows=numbers("--rows", rows, int),
            batch_sizes=numbers("--batch-sizes", batch_sizes, int),
            trees=tuple(map(parse_tree, trees)),
        )

    def fitted(self, constants: Constants) -> "Settings":
        """With the artifact's own lengths where none were given.

        Raises SettingError for a length that the artifact does not reach.
        """
        longest_context = constants.max_seq_len - max(constants.tail, *self.rows)
        longest_chain = constants.tail - 1
        check_range("--contexts", self.contexts, longest_context)
        check_range("--chain-lens", self.chain_lens, longest_chain)
        check_range("--rows", self.rows, constants.max_rows)
        for tree in self.trees:
            if tree.paths is not None:
                raise SettingError("--tree FILE: only DEPTH,TOPK,NODES is timed")
            check_tree(tree, longest_chain, constants.max_rows, constants.max_seq_len)
        check_range("--batch-sizes", self.batch_sizes, constants.max_batch_size)
        return replace(
            self,
            contexts=self.contexts or default_contexts(longest_context),
            chain_lens=self.chain_lens or tuple(range(1, min(DEFAULT_CHAINS, longest_chain) + 1)),
        )

    def shapes(self, max_rows: int) -> list[tuple[int, int]]:
        """Sequences and rows of each that one forward verifies, one sequence first."""
        verified = *self.chain_lens, *(tree.nodes for tree in self.trees)
        rows = sorted({1, *self.rows, *(drafts + 1 for drafts in verified)})
        batches = sorted({1, *self.batch_sizes})
        return [(b, r) for b in batches for r in rows if b * r <= max_rows]


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """The distinct numbers of a comma-separated list, ascending. Raises SettingError."""
    try:
        return tuple(sorted({kind(item) for item in text.split(",")}))
    except ValueError as error:
        raise SettingError(f"{option} {text!r}: expected numbers with commas between") from error


def check_range(option: str, values: Iterable[int], largest: int) -> None:
    """Raise SettingError unless all values lie in [1, largest]."""
    for value in values:
        if not 1 <= value <= largest:
            raise SettingError(f"{option} {value}: this artifact takes 1 to {largest}")


def default_contexts(longest: int) -> tuple[int, ...]:
    """A few lengths four times apart, the last of them as long as fits."""
    shorter = []
    length = SHORTEST_DEFAULT
    while length < longest:
        shorter.append(length)
        length *= 4
    return (*shorter[-(DEFAULT_CONTEXTS - 1) :], longest)
