"""Times of one layer's attention, replayed as CUDA graphs."""

from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from eagle_aot.triton_kernels.sdpa_splitk import sdpa_reference, sdpa_splitk
from eagle_aot.triton_kernels.sdpa_splitk.tiling import Tiling
from graph_timing import median_us
from sdpa_bench.layers import Cache, Caches, Layer, Queries, last_rows
from sdpa_bench.peers import PEERS, Attention, NotServed


class Launch(Protocol):
    """`kernel.launch`."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        input_pos: Tensor,
        scale: float,
        window: int,
        tiling: Tiling | None = None,
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """One call in microseconds, beside what reading its keys and values takes at the least."""

    layer: str
    slots: int
    context: int
    rows: int
    us: float
    bytes: int
    error: float
    peers: dict[str, float] = field(default_factory=dict)

    @property
    def bandwidth(self) -> float:
        """Bytes of keys and values per second."""
        return 1e6 * self.bytes / self.us


def splitk(queries: Queries) -> Attention:
    """This project's operator."""
    layer = queries.layer
    return lambda kv: sdpa_splitk(
        queries.q, kv.k, kv.v, queries.input_pos, layer.scale, layer.window
    )


def microseconds(attention: Attention, caches: list[Cache]) -> float:
    """Of one call, by replays of a graph that reads every cache once."""
    return median_us([partial(attention, kv) for kv in caches])


class Bench:
    """One layer and its caches."""

    def __init__(self, layer: Layer, slots: int, contexts: list[int], notes: set[str]) -> None:
        """`notes` gathers why peers are missing."""
        self._caches = Caches(layer, slots, min(contexts))
        self._notes = notes

    def measure(self, context: int, rows: int, peers: tuple[str, ...] = ()) -> Measured:
        """The operator and `peers` behind `context - rows` tokens."""
        layer = self._caches.layer
        queries, caches = last_rows(layer, context, rows), self._caches.of(context)
        found = {name: self._peer(name, queries, caches) for name in peers}
        return Measured(
            layer=layer.name,
            slots=self._caches.slots,
            context=context,
            rows=rows,
            us=microseconds(splitk(queries), caches),
            bytes=layer.bytes_read(context, rows),
            error=largest_error(queries, caches[0]),
            peers={name: us for name, us in found.items() if us is not None},
        )

    def candidate(self, launch: Launch, tiling: Tiling, context: int, rows: int) -> float:
        """Microseconds with another tiling. Raises what compiling and launching it raise."""
        layer = self._caches.layer
        queries = last_rows(layer, context, rows)
        return microseconds(
            lambda kv: launch(
                queries.q, kv.k, kv.v, queries.input_pos, layer.scale, layer.window, tiling
            ),
            self._caches.of(context),
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
    layer, pos = queries.layer, queries.input_pos
    n = kv.k.shape[2] if layer.window else queries.context
    k, v = (x[:, :, :n].float() for x in (kv.k, kv.v))
    expected = sdpa_reference(queries.q.float(), k, v, pos, layer.scale, layer.window)
    return float((splitk(queries)(kv) - expected).abs().max())


def first_line(error: Exception) -> str:
    """What an error says, short."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text.strip()[:160]}"
