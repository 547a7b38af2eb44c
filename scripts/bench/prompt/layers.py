"""Chunks of a prompt through the first layers of a target, launched kernel by kernel.

All between two layers' products is operators of this project, so what is timed is what a compiled
program runs, but for what comes before the first layer and behind the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from bench.verify.kernels import Share, kernels_of, shares
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.loading.source import DUMMY, Source
from eagle_aot.export.lowering.backend import multiprocessors
from eagle_aot.export.prepare.pack import pack_int4
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.tap_decoder import Context, TapDecoder
from eagle_aot.targets.step import PromptChunk
from shared.graph_timing import median_us

MODEL, LAYERS = "gemma4-31b", 6
"""Five sliding ones and a full one, of 60."""

CUTS = (0, 65, 200, 713, 1024, 2048)
"""Where a chunk is cut that was run whole before."""


@dataclass(frozen=True, slots=True)
class Chunked:
    """A chunk of `rows` behind `behind` tokens, through all `LAYERS`."""

    behind: int
    rows: int
    us: float

    @property
    def tokens_per_second(self) -> float:
        """As if all 60 layers took as long, ten times these; no output table, and no head."""
        return self.rows / (10 * self.us) * 1e6


class Layers:
    """The layers of a target with random weights, and caches full of random numbers."""

    def __init__(self, target: TapDecoder) -> None:
        self.target = target.eval()
        for module in target.modules():
            if isinstance(module, KVCache):
                module.k.normal_()
                module.v.normal_()

    def chunk(self, behind: int, rows: int) -> tuple[dict[str, Context], Tensor]:
        """What its layers share, and the stream that enters the first."""
        device = self.target.embed_weight.device
        positions = torch.arange(behind, behind + rows, device=device)
        first = torch.zeros(1, dtype=torch.int64, device=device)
        contexts = self.target._contexts(PromptChunk(positions, first, streams_keys=True))
        for context in contexts.values():
            _ = context.view.own  # made once, before the layers
        hidden = self.target.norm.weight
        assert hidden is not None
        stream = torch.randn(1, rows, len(hidden), device=device).to(hidden.dtype)
        return contexts, stream

    @torch.no_grad()
    def run(
        self, contexts: dict[str, Context], stream: Tensor, normed: Tensor | None = None
    ) -> Tensor:
        """The stream behind the last layer, [1, T, H]."""
        layers = list(self.target._layers())
        norms = [*(layer.input_layernorm for layer in layers), self.target.norm]
        if normed is None:
            normed = norms[0](stream)
        for layer, norm in zip(layers, norms[1:], strict=True):
            stream, normed = layer(stream, normed, contexts[layer.kind], norm)
        return stream

    def measure(self, behind: int, rows: int) -> Chunked:
        """Weights alone are more than L2 holds."""
        contexts, stream = self.chunk(behind, rows)
        us = median_us([lambda: self.run(contexts, stream)])
        torch.cuda.empty_cache()
        return Chunked(behind, rows, us)

    def split(self, behind: int, rows: int) -> list[Share]:
        """Of a chunk by kinds of kernels. Time first."""
        contexts, stream = self.chunk(behind, rows)
        return shares(kernels_of(lambda: self.run(contexts, stream)))

    def uncut(self, behind: int, rows: int, cuts: Sequence[int]) -> bool:
        """Whether rows have the bits in chunks that they have in one.

        What enters is normed as one: launched by itself, PyTorch's sum of a row depends on how
        many there are.
        """
        contexts, stream = self.chunk(behind, rows)
        normed = next(iter(self.target._layers())).input_layernorm(stream)
        whole, parts = self.run(contexts, stream, normed), []
        for first, last in pairwise(cuts):
            part, _ = self.chunk(behind + first, last - first)
            parts.append(self.run(part, stream[:, first:last], normed[:, first:last]))
        return torch.equal(torch.cat(parts, dim=1), whole)


def random_layers(max_seq_len: int, chunk: int) -> Layers:
    """The first of a target with random INT4 weights."""
    source = Source.find(MODEL, None, None, DUMMY, LAYERS, drafter="ngram")
    with torch.device("cuda"):
        pair = load_pair(
            source, torch.bfloat16, CacheSpec(max_seq_len, torch.bfloat16, chunk=chunk)
        ).pair
    target = pack_int4(pair, multiprocessors()).target
    assert isinstance(target, TapDecoder)
    return Layers(target)
