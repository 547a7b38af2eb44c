"""The specification of an artifact's method: its module, inputs, outputs and written buffers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache
from eagle_aot.targets.step import TAIL, chain_tail

BATCH, ROWS, WIDTH = "batch", "rows", "width"
"""Symbolic sizes: sequences, rows of a sequence, and any size that does not vary."""

LOGITS, FEATURES = "logits", "features"
IS_IMAGE = "is_image"
"""The input that marks the rows of a draft head's prompt that contain rows of an image."""

TYPICAL_ROWS = 8
"""Rows of a step, over all its sequences, at which methods are traced and tuned."""

Input = tuple[Tensor, Mapping[int, str]]
"""An example tensor, and the symbolic size of each dimension that varies."""

Form = tuple[str, tuple[object, ...]]
"""A dtype, or FEATURES for any floating-point dtype, and sizes, which may be symbolic."""

ALL_ROWS: dict[str, Form] = {
    LOGITS: ("float32", (BATCH, ROWS, WIDTH)),
    FEATURES: (FEATURES, (BATCH, ROWS, WIDTH)),
}
LAST_ROW: dict[str, Form] = {
    LOGITS: ("float32", (1, 1, WIDTH)),
    FEATURES: (FEATURES, (1, ROWS, WIDTH)),
}
"""What methods return: logits, never ids, because the runner chooses tokens; and features, if the
drafter reads some."""


def target_outputs(forms: Mapping[str, Form], tap_layers: Sequence[int]) -> dict[str, Form]:
    """Return the outputs of a target's method: features only for a drafter that reads taps."""
    return {name: form for name, form in forms.items() if name != FEATURES or tap_layers}


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSpec:
    """One method of an artifact, ready to be traced.

    `inputs` are in the order of the module's signature. `writes` names every buffer that the method
    writes. `min_rows` and `max_rows` bound the rows of a sequence, both inclusive. A method of
    `few_rows` reads each weight once for all rows. A step may have `lines` times as many lines of
    rows as the caches have sequences. With `use_splitk` it reads caches only by the project's
    operator for its number of rows. `decompositions` are applied after tracing.
    """

    module: nn.Module
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Form]
    writes: frozenset[str]
    min_rows: int
    max_rows: int
    few_rows: bool
    lines: int = 1
    use_splitk: bool = False
    decompositions: Mapping[OpOverload, Callable[..., Any]] = field(default_factory=dict)

    @property
    def varies(self) -> bool:
        """Whether the number of rows varies."""
        return any(ROWS in varies.values() for _, varies in self.inputs.values())

    @property
    def takes_batches(self) -> bool:
        """Whether rows may belong to several sequences."""
        return any(BATCH in varies.values() for _, varies in self.inputs.values())

    @property
    def forms(self) -> dict[str, Form]:
        """The dtype and sizes of each input."""
        return {name: _form(*example) for name, example in self.inputs.items()}


def _form(example: Tensor, varies: Mapping[int, str]) -> Form:
    sizes = tuple(varies.get(dim, size) for dim, size in enumerate(example.shape))
    return str(example.dtype).removeprefix("torch."), sizes


CACHES = KVCache, RecurrentCache


def caches_of(
    pair: nn.Module, owner: str, kinds: tuple[type[KVCache | RecurrentCache], ...] = CACHES
) -> frozenset[str]:
    """Return the names of the buffers of all caches of these kinds of a pair's `owner`, "target" or
    "draft".

    A cache's module is called `kv_cache`: by this name ExecuTorch's CUDA backend recognises caches,
    for which it allocates no memory while it compiles.
    """
    caches = {path: module for path, module in pair.named_modules() if isinstance(module, kinds)}
    assert all(path.endswith("kv_cache") for path in caches), list(caches)
    return frozenset(
        f"{path}.{buffer}"
        for path, cache in caches.items()
        for buffer in cache.buffer_names
        if path.startswith(f"{owner}.")
    )


def prompt_inputs(rows: int) -> dict[str, Input]:
    """Return the inputs of a prompt chunk of `rows` rows."""
    return {
        "tokens": (torch.zeros(1, rows, dtype=torch.int64), {1: ROWS}),
        "input_pos": (torch.arange(rows), {0: ROWS}),
        "sequence": (torch.zeros(1, dtype=torch.int64), {}),
    }


def embeds_inputs(rows: int, width: int, dtype: torch.dtype) -> dict[str, Input]:
    """Return the inputs of a prompt chunk whose rows may be embeddings, as `ChunkEmbeds` says."""
    return {
        "embeddings": (torch.zeros(1, rows, width, dtype=dtype), {1: ROWS}),
        "last_visible": (torch.full((rows,), -1), {0: ROWS}),
    }


def copy_inputs(rows: int) -> dict[str, Input]:
    """Return the inputs of a method that copies `rows` rows from one sequence to another."""
    return {
        "input_pos": (torch.arange(rows), {0: ROWS}),
        "source": (torch.zeros(1, dtype=torch.int64), {}),
        "sequence": (torch.ones(1, dtype=torch.int64), {}),
    }


def step_inputs(batch: int) -> dict[str, Input]:
    """Return the inputs of a step of at most `batch` sequences."""
    positions = torch.zeros(typical_shape(batch), dtype=torch.int64)
    positions += torch.arange(positions.shape[1])
    by_row = {0: BATCH, 1: ROWS}
    return {
        "tokens": (torch.zeros_like(positions), by_row),
        "positions": (positions, by_row),
        "sequences": (torch.arange(len(positions)), {0: BATCH}),
        "tail": (chain_tail(positions), by_row),
    }


def moves_input(batch: int) -> dict[str, Input]:
    """Return the input for the slots that are moved before a step of at most `batch` sequences."""
    return {"moves": (torch.full((typical_shape(batch)[0], TAIL), -1), {0: BATCH})}


def features_input(batch: int, width: int, dtype: torch.dtype) -> dict[str, Input]:
    """Return the input for the feature of each row of a step of at most `batch` sequences."""
    features = torch.zeros(*typical_shape(batch), width, dtype=dtype)
    return {"features": (features, {0: BATCH, 1: ROWS})}


def typical_shape(batch: int) -> tuple[int, int]:
    """Return the sequences, and the rows of each, of a typical step of at most `batch` sequences.

    A dimension that varies must be traced with a size of at least 2.
    """
    sequences = min(batch, 2)
    return sequences, TYPICAL_ROWS // sequences
