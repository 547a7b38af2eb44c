"""Times of one layer's attention, replayed as CUDA graphs."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from eagle_aot.lab.bench.kernels.graph_timing import median_us
from eagle_aot.lab.bench.kernels.sdpa.layers import Cache, Caches, Layer, Queries, last_rows
from eagle_aot.lab.bench.kernels.sdpa.peers import PEERS, Attention, NotServed
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_reference, sdpa_splitk
from eagle_aot.triton_kernels.sdpa_splitk.tiling import Tiling


class Launch(Protocol):
    """`kernel.launch`."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        sequences: Tensor,
        tail: Tensor,
        scale: float,
        window: int,
        ring: int,
        tiling: Tiling | None = None,
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """One call in microseconds, beside what reading its keys and values takes at the least."""

    layer: str
    slots: int
    context: int
    sequences: int
    rows: int
    us: float
    bytes: int
    error: float
    peers: dict[str, float] = field(default_factory=dict)

    @property
    def bandwidth(self) -> float:
        """Bytes of keys and values per second."""
        return 1e6 * self.bytes / self.us


Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float, int, int]


def arguments(queries: Queries, kv: Cache) -> Arguments:
    """The operator's."""
    layer = queries.layer
    rows = queries.positions, queries.sequences, queries.tail
    return queries.q, kv.k, kv.v, *rows, layer.scale, layer.window, layer.ring


def splitk(queries: Queries) -> Attention:
    """This project's operator."""
    return lambda kv: sdpa_splitk(*arguments(queries, kv))


def microseconds(attention: Attention, caches: list[Cache]) -> float:
    """Of one call, by replays of a graph that reads every cache once."""
    return median_us([partial(attention, kv) for kv in caches])


class Bench:
    """One layer and its caches, of so many sequences."""

    def __init__(
        self, layer: Layer, slots: int, contexts: list[int], notes: set[str], sequences: int = 1
    ) -> None:
        """`notes` gathers why peers are missing."""
        self._caches = Caches(layer, slots, min(contexts), sequences)
        self._notes = notes

    def measure(self, context: int, rows: int, peers: tuple[str, ...] = ()) -> Measured:
        """The operator and `peers` behind `context - rows` tokens of each sequence."""
        layer, sequences = self._caches.layer, self._caches.sequences
        queries, caches = last_rows(layer, context, rows, sequences), self._caches.of(context)
        found = {name: self._peer(name, queries, caches) for name in peers}
        return Measured(
            layer=layer.name,
            slots=self._caches.slots,
            context=context,
            sequences=sequences,
            rows=rows,
            us=microseconds(splitk(queries), caches),
            bytes=sequences * layer.bytes_read(context, rows),
            error=largest_error(queries, caches[0]),
            peers={name: us for name, us in found.items() if us is not None},
        )

    def candidate(self, launch: Launch, tiling: Tiling, context: int, rows: int) -> float:
        """Microseconds with another tiling. Raises what compiling and launching it raise."""
        queries = last_rows(self._caches.layer, context, rows, self._caches.sequences)
        return microseconds(
            lambda kv: launch(*arguments(queries, kv), tiling), self._caches.of(context)
        )

    def _peer(self, name: str, queries: Queries, caches: list[Cache]) -> float | None:
        try:
            return microseconds(PEERS[name](queries), caches[:4])
        except NotServed as reason:
            self._notes.add(f"{name}, {queries.layer.name}: {reason}")
        except Exception as error:  # compilers have no common base for theirs
            self._notes.add(f"{name}, {queries.layer.name}: {first_line(error)}")
        finally:
            torch.cuda.empty_cache()  # what a graph held
        return None


def largest_error(queries: Queries, kv: Cache) -> float:
    """Largest difference from the same attention in float32."""
    wide = replace(queries, q=queries.q.float())
    return float((splitk(queries)(kv) - sdpa_reference(*arguments(wide, kv))).abs().max())


def first_line(error: Exception) -> str:
    """What an error says, short."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text.strip()[:160]}"
