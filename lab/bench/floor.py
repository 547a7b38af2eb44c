"""The bytes that a forward must read, whatever computes it.

Every weight is read once, weights that share storage on the device once together. Of an embedding
table the looked-up rows are read, of an output table the whole, even where a copy in fewer bits
saves most of it, of a cache the slots that may be attended, of recurrent states
one for each sequence and the tokens of a tail. Activations and writes are left out: they are small
next to weights. Of experts those count that the rows take, as many as random rows would: no program
reports them.
"""

import math
from collections.abc import Callable, Collection, Hashable, Mapping

import torch
from torch import Tensor

from eagle_aot.artifact import (
    DFLASH_BLOCKS,
    DFLASH_CONTEXT,
    DRAFT_DECODE,
    DSPARK_BIAS,
    METHODS,
    MTP_DECODE,
    PEAGLE_DECODE,
    TABLE_SCREEN,
    TARGET_VERIFY,
    Constants,
    Manifest,
)
from eagle_aot.lab.bench.results import Floor
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.program.aoti import AotiExecutor
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.program.plan import CudaMethod
from eagle_aot.runtime_runner.program.weight_table import Weight
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache

EMBEDDING = ".embed_tokens.weight"
LOOKED_UP = (EMBEDDING, ".markov_w1.weight")  # tables that a forward reads one row of per token

EXPERTS, ROUTERS = ".experts.", (".gate.weight", ".router.proj.weight")
"""Part of the names of experts, and what stands in place of it, to the end, in the name of their
router."""
DRAWS = 64  # of random rows

OF_SEQUENCES = ".kv_cache.state", ".kv_cache.position"
"""What the names of states end in, which sequences have; other recurrent caches are of tokens."""
RECURRENT = tuple(f".kv_cache.{name}" for name in RecurrentCache.buffer_names)

StorageOf = Callable[[Weight], Hashable]  # identifies the device storage of a weight


class BytesToRead:
    """Bytes that the parts of a round must read, by the weight tables of a program's methods.

    `caches` are the names of weights that are caches. `taken` returns which share of the experts
    with this name so many rows take.
    """

    def __init__(
        self,
        methods: Mapping[str, CudaMethod],
        constants: Constants,
        storage_of: StorageOf,
        caches: Collection[str],
        taken: Callable[[str, int], float] = lambda name, rows: 1.0,
    ) -> None:
        self._methods = methods
        self._storage_of = storage_of
        self._caches, self._taken = caches, taken
        self._window, self._tail = constants.sliding_window, constants.tail
        self._batch, self._flat_slots = constants.max_batch_size, constants.flat_slots

    def forward(self, method: str, rows: int, context: int, sequences: int = 1) -> int:
        """Return the bytes read by `rows` tokens of each of `sequences` after `context` tokens."""
        weights = self._methods[method].weights
        has_output_table = any(".lm_head." in weight.fqn for weight in weights)
        read: dict[Hashable, int] = {}
        for weight in weights:
            if weight.device == "cuda" and weight.owner != TABLE_SCREEN:
                storage, whole = self._storage_of(weight), weight.storage_nbytes
                part = self._bytes_of(weight, rows, context, sequences, has_output_table)
                read[storage] = min(whole, read.get(storage, 0) + part)
        return sum(read.values())

    def round(self, shape: Shape, context: int) -> int:
        """Return the bytes read by a round: drafting after the first draft, verifying, reseeding.

        Without a head it is verification alone: looking drafts up in a text reads little.
        """
        verify = self.forward(TARGET_VERIFY, shape.nodes + 1, context)
        return verify + (self._drafting(shape, context) if shape.nodes else 0)

    def _drafting(self, shape: Shape, context: int) -> int:
        """Return the bytes read by a round's drafts and by the drafter's reseed."""
        rows = shape.depth + 1
        if blocks := [method for method in DFLASH_BLOCKS if method in self._methods]:
            block = self.forward(blocks[0], rows, context)
            if DSPARK_BIAS in self._methods:
                block += shape.depth * self.forward(DSPARK_BIAS, shape.topk, 0)
            return block + self.forward(DFLASH_CONTEXT, rows, 0)
        if PEAGLE_DECODE in self._methods:
            masks = self.forward(PEAGLE_DECODE, rows - 2, context) if rows > 2 else 0
            return masks + self.forward(PEAGLE_DECODE, rows, context)
        drafting = [method for method in (DRAFT_DECODE, MTP_DECODE) if method in self._methods]
        if not drafting:
            return 0
        rows = 1 if drafting[0] == MTP_DECODE else rows  # an assistant commits nothing
        step = self.forward(drafting[0], shape.topk, context)
        return (shape.depth - 1) * step + self.forward(drafting[0], rows, context)

    def _bytes_of(
        self, weight: Weight, rows: int, context: int, sequences: int, has_output_table: bool
    ) -> int:
        whole = math.prod(weight.sizes) * weight.dtype.itemsize
        if weight.fqn.endswith(RECURRENT):
            entries = 1 if weight.fqn.endswith(OF_SEQUENCES) else self._tail + rows
            return whole // weight.sizes[0] * min(entries * sequences, weight.sizes[0])
        if weight.fqn in self._caches:
            slots = weight.sizes[1]
            read = self._slots_read(slots // self._batch, context + rows)
            return whole // slots * read * sequences
        if EXPERTS in weight.fqn:
            return int(whole * self._taken(weight.fqn, rows * sequences))
        shares_output_table = weight.fqn.endswith(EMBEDDING) and not has_output_table
        if weight.fqn.endswith(LOOKED_UP) and not shares_output_table:
            return whole // weight.sizes[0] * min(rows * sequences, weight.sizes[0])
        return whole

    def _slots_read(self, slots: int, length: int) -> int:
        """Return how many of a sequence's `slots` are read at `length` tokens.

        A cache [heads, sequences * slots, head_dim] is flat, or a ring that shows its window.
        """
        return min(length, slots if slots == self._flat_slots else self._window)


class Floors:
    """Times to read at a bandwidth in bytes per second; None where the bytes are not known."""

    def __init__(self, bytes_: BytesToRead | None, bandwidth: float) -> None:
        self._bytes = bytes_
        self._bandwidth = bandwidth

    def forward(self, method: str, rows: int, context: int, sequences: int = 1) -> Floor | None:
        """Return the floor of a forward."""
        if self._bytes is None:
            return None
        return self._floor(self._bytes.forward(method, rows, context, sequences))

    def round(self, shape: Shape, context: int) -> Floor | None:
        """Return the floor of a round."""
        if self._bytes is None:
            return None
        return self._floor(self._bytes.round(shape, context))

    def _floor(self, bytes_: int) -> Floor:
        return Floor(bytes=bytes_, ms=1e3 * bytes_ / self._bandwidth)


class TakenExperts:
    """Shares of experts that rows take, estimated from the weights of their routers [E, H].

    A router's score for a row of no particular direction is normal, with a deviation that is the
    length of the expert's row. Routers of dummies differ in nothing else; texts share more experts.
    """

    def __init__(self, routers: Mapping[str, Tensor], top_k: int) -> None:
        """`routers` by what precedes `EXPERTS` in the names of their experts."""
        self._routers, self._top_k = routers, top_k
        self._shares: dict[tuple[str, int], float] = {}

    def __call__(self, name: str, rows: int) -> float:
        """Return the share of the experts called `name` that `rows` rows take."""
        key = name.partition(EXPERTS)[0], rows
        if key not in self._shares:
            self._shares[key] = share_of_experts(self._routers[key[0]], self._top_k, rows)
        return self._shares[key]


def share_of_experts(router: Tensor, top_k: int, rows: int) -> float:
    """Return the expected share of experts that `rows` rows take, `top_k` each, by `router` [E, H].

    All draws are of one seed.
    """
    lengths = router.detach().float().cpu().norm(dim=1)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(DRAWS, rows, len(lengths), generator=generator) * lengths
    ids = scores.topk(top_k).indices.flatten(1)
    return float(torch.zeros(DRAWS, len(lengths)).scatter(1, ids, 1.0).mean())


def experts_per_row(manifest: Manifest) -> int:
    """Return how many experts each row takes, 0 for a target without experts."""
    kernels = manifest.decisions.get("kernels", {}).get(TARGET_VERIFY, {})
    products = kernels.get("eagle_aot::int4_experts_few", [{"top_k": 0}])
    return int(products[0]["top_k"])


def bytes_to_read(
    executor: Executor, constants: Constants, methods: Collection[str] = METHODS, top_k: int = 0
) -> BytesToRead | None:
    """Return the bytes that rounds of some `methods` read, None for an executor that does not know
    its weights. A row takes `top_k` experts."""
    if not isinstance(executor, AotiExecutor):
        return None
    weights = executor.weights
    used = {name: method for name, method in executor.methods.items() if name in methods}
    tables = (weight for method in used.values() for weight in method.weights)
    routers = {
        weight.fqn.removesuffix(suffix): weights.tensor(weight)
        for weight in tables
        for suffix in ROUTERS
        if top_k and weight.fqn.endswith(suffix)
    }
    taken = TakenExperts(routers, top_k)
    return BytesToRead(used, constants, weights.storage_of, weights.caches, taken)
