"""What a method of an artifact is: a module, what it takes and returns, and what it may touch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.step import TAIL, chain_tail

BATCH, ROWS, WIDTH = "batch", "rows", "width"
"""Sizes that are no number: sequences, rows of a sequence, and any that does not vary."""

LOGITS, FEATURES = "logits", "features"
IS_IMAGE = "is_image"
"""The input that says which rows of a draft head's prompt hold a row of an image."""

TYPICAL_ROWS = 8
"""Of a step, over all its sequences: what methods are traced and tuned at."""

Input = tuple[Tensor, Mapping[int, str]]
"""An example, and what those of its dimensions count that vary."""

Form = tuple[str, tuple[object, ...]]
"""A dtype, or FEATURES for any of floating point, and sizes."""

ALL_ROWS: dict[str, Form] = {
    LOGITS: ("float32", (BATCH, ROWS, WIDTH)),
    FEATURES: (FEATURES, (BATCH, ROWS, WIDTH)),
}
LAST_ROW: dict[str, Form] = {
    LOGITS: ("float32", (1, 1, WIDTH)),
    FEATURES: (FEATURES, (1, ROWS, WIDTH)),
}
"""What methods return: logits, never ids, which the runner chooses; and features, if anyone reads
them."""


def returned(forms: Mapping[str, Form], tap_layers: Sequence[int]) -> dict[str, Form]:
    """Those of a target's method: features are for drafters that read some boundaries."""
    return {name: form for name, form in forms.items() if name != FEATURES or tap_layers}


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSpec:
    """One method of an artifact, ready to be traced.

    `inputs` are by name, in the order of the module's signature, `outputs` by what they are.
    `writes` names the buffers that it writes, all of them. `min_rows` and `max_rows` bound the rows
    of a sequence, both inclusive. A method of `few_rows` reads each weight once for all of them;
    one that `splits_keys` reads caches with the operator for as many rows, and nothing else. Once
    traced, operators of `decompositions` are what those say instead.
    """

    module: nn.Module
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Form]
    writes: frozenset[str]
    min_rows: int
    max_rows: int
    few_rows: bool
    splits_keys: bool = False
    decompositions: Mapping[OpOverload, Callable[..., Any]] = field(default_factory=dict)

    @property
    def varies(self) -> bool:
        """Whether the number of rows does."""
        return any(ROWS in varies.values() for _, varies in self.inputs.values())

    @property
    def takes_batches(self) -> bool:
        """Whether rows may be of several sequences."""
        return any(BATCH in varies.values() for _, varies in self.inputs.values())

    @property
    def forms(self) -> dict[str, Form]:
        """Of the inputs."""
        return {name: form_of(*given) for name, given in self.inputs.items()}


def form_of(example: Tensor, varies: Mapping[int, str]) -> Form:
    """An input's, of any length."""
    sizes = tuple(varies.get(at, size) for at, size in enumerate(example.shape))
    return str(example.dtype).removeprefix("torch."), sizes


def caches_of(pair: nn.Module, owner: str) -> frozenset[str]:
    """The buffers of all caches of a pair's `owner`, "target" or "draft".

    ExecuTorch's CUDA backend knows a cache, which takes no room while it compiles, by `kv_cache` in
    its name alone: modules of caches are called that.
    """
    caches = [path for path, module in pair.named_modules() if isinstance(module, KVCache)]
    assert all(path.endswith("kv_cache") for path in caches), caches
    own = [path for path in caches if path.startswith(f"{owner}.")]
    return frozenset(f"{path}.{buffer}" for path in own for buffer in ("k", "v"))


def prompt_inputs(rows: int) -> dict[str, Input]:
    """Of a chunk of so many rows."""
    return {
        "tokens": (torch.zeros(1, rows, dtype=torch.int64), {1: ROWS}),
        "input_pos": (torch.arange(rows), {0: ROWS}),
        "sequence": (torch.zeros(1, dtype=torch.int64), {}),
    }


def given_inputs(rows: int, width: int, dtype: torch.dtype) -> dict[str, Input]:
    """Rows of such a chunk that are no tokens', and up to where they see."""
    return {
        "embeddings": (torch.zeros(1, rows, width, dtype=dtype), {1: ROWS}),
        "last_visible": (torch.full((rows,), -1), {0: ROWS}),
    }


def copy_inputs(rows: int) -> dict[str, Input]:
    """Of so many rows, from one sequence to another."""
    return {
        "input_pos": (torch.arange(rows), {0: ROWS}),
        "source": (torch.zeros(1, dtype=torch.int64), {}),
        "sequence": (torch.ones(1, dtype=torch.int64), {}),
    }


def step_inputs(batch: int) -> dict[str, Input]:
    """Of a step of at most so many sequences."""
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
    """What is moved before a step of at most so many sequences."""
    return {"moves": (torch.full((typical_shape(batch)[0], TAIL), -1), {0: BATCH})}


def features_input(batch: int, width: int, dtype: torch.dtype) -> dict[str, Input]:
    """A feature for each row of a step of at most so many sequences."""
    features = torch.zeros(*typical_shape(batch), width, dtype=dtype)
    return {"features": (features, {0: BATCH, 1: ROWS})}


def typical_shape(batch: int) -> tuple[int, int]:
    """Sequences and rows of each of a typical step where there may be `batch` sequences.

    A dimension that varies must be traced at 2 or more.
    """
    sequences = min(batch, 2)
    return sequences, TYPICAL_ROWS // sequences
