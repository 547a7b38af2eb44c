"""Experts that a file stores as one tensor, under the names that each would have alone.

transformers 5 stacks the experts of a layer: `experts.gate_up_proj` [E, 2 I, H], in which the rows
of an expert's gate come before those of its up projection, and `experts.down_proj` [E, H, I]. Here
they are `experts.0.gate_proj.weight` and so on, as older files and quantized ones store them.
Source: transformers 5.23 `models/gemma4`, `models/qwen3_moe`, `conversion_mapping.py`.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.targets.weight_files.protocol import TensorStorage, WeightFile

STACK = re.compile(r"(.*\bexperts)\.(gate_up_proj|down_proj)(\w*)")
PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


@dataclass(frozen=True, slots=True)
class Slice:
    """Part number `part` of `parts` equal ones of the rows of one expert in a stack."""

    stack: str
    expert: int
    part: int
    parts: int


class UnstackedFile:
    """A file without its stacks [E, N, K], and with a tensor [N, K] of each expert instead.

    The stack that was read last stays in memory: its experts are read one after another.
    """

    @staticmethod
    def recognises(file: WeightFile) -> bool:
        """Whether `file` has stacks. Raises UnsupportedError for stacks of quantized experts."""
        return any(_is_stack(file, name) for name in file.names())

    def __init__(self, file: WeightFile) -> None:
        self.path, self._file = file.path, file
        self._slices: dict[str, Slice] = {}
        stacks = [name for name in file.names() if _is_stack(file, name)]
        for name in stacks:
            self._slices |= _slices(name, file.shape(name)[0])
        self._names = [name for name in file.names() if name not in stacks]
        self._last: tuple[str, Tensor] = "", torch.empty(0)

    def names(self) -> list[str]:
        return [*self._names, *self._slices]

    def shape(self, name: str) -> torch.Size:
        if (at := self._slices.get(name)) is None:
            return self._file.shape(name)
        _, rows, columns = self._file.shape(at.stack)
        return torch.Size((rows // at.parts, columns))

    def storage(self, name: str) -> TensorStorage:
        if (at := self._slices.get(name)) is None:
            return self._file.storage(name)
        stack = self._file.storage(at.stack)
        share = self._file.shape(at.stack)[0] * at.parts
        return TensorStorage(stack.file_format, stack.bytes // share)

    def tensor(self, name: str) -> Tensor:
        if (at := self._slices.get(name)) is None:
            return self._file.tensor(name)
        if self._last[0] != at.stack:
            self._last = at.stack, self._file.tensor(at.stack)
        rows = self.shape(name)[0]
        return self._last[1][at.expert, at.part * rows : (at.part + 1) * rows]

    def int4(self, name: str) -> Int4Weight | None:
        return None if name in self._slices else self._file.int4(name)


def _is_stack(file: WeightFile, name: str) -> bool:
    match = STACK.fullmatch(name)
    if match is None or len(file.shape(name)) != 3:
        return False
    if match[3]:
        raise UnsupportedError(
            f"{file.path}: {name} holds quantized experts in one tensor: only those with tensors "
            "for each expert are read"
        )
    return True


def _slices(stack: str, experts: int) -> dict[str, Slice]:
    """Return what an expert's linears are of a stack, by name."""
    owner, _, leaf = stack.rpartition(".")
    parts = PARTS[leaf]
    return {
        f"{owner}.{expert}.{name}.weight": Slice(stack, expert, part, len(parts))
        for expert in range(experts)
        for part, name in enumerate(parts)
    }
