"""Rows of pictures in the slots of a draft head, where its methods take them.

Slot j pairs the embedding of token j + 1 with the feature of position j: a picture's rows come one
slot before their positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, DRAFT_PREFILL, ImageInputs
from eagle_aot.runtime_runner.decode.input_embeds import InputEmbeds
from eagle_aot.runtime_runner.program.executor import Call, Executor

METHODS = (DRAFT_DECODE, DRAFT_PREFILL)


class HeadSeeds:
    """An executor for what drafts: to the head's methods it hands `embeddings` [B, T, H] and
    `given` int64 [B, T] besides, of pictures while a chunk of a prompt is shown."""

    def __init__(self, executor: Executor, images: ImageInputs) -> None:
        self._executor, self._hidden = executor, images.hidden_size
        self._shown: InputEmbeds | None = None
        self.name, self.device = executor.name, executor.device
        self._dtype = torch.bfloat16 if executor.device.type == "cuda" else torch.float32

    @contextmanager
    def showing(self, given: InputEmbeds) -> Iterator[None]:
        """While the slots of a chunk with such rows are run."""
        self._shown = given
        try:
            yield
        finally:
            self._shown = None

    def constants(self) -> Mapping[str, Sequence[Any]]:
        """The program's."""
        return self._executor.constants()

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """As the executor does."""
        more = self._rows(*inputs[0].shape) if method in METHODS else ()
        return self._executor.run(method, *inputs, *more)

    def repeat(self, step: Call) -> Call:
        """As the executor does."""
        return self._executor.repeat(step)

    def _rows(self, batch: int, count: int) -> tuple[Tensor, Tensor]:
        """For the last `count` slots of a chunk. The one behind its last row has a token's
        embedding: whether a picture begins there is the next chunk's to know."""
        device, hidden = self.device, self._hidden
        embeddings = torch.zeros(batch, count, hidden, dtype=self._dtype, device=device)
        given = torch.zeros(batch, count, dtype=torch.int64, device=device)
        if self._shown is not None and count > 1:
            told = self._shown.last_visible[1:count] >= 0
            embeddings[:, :-1] = self._shown.embeddings[:, 1:count]
            given[:, :-1] = told.long()
        return embeddings, given
