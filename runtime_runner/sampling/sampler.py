"""The choice of tokens for all sequences of an artifact."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.threads import single_threaded_on_cpu
from eagle_aot.runtime_runner.sampling.greedy import greedy
from eagle_aot.runtime_runner.sampling.logprobs import packed
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingMode, SamplingParams
from eagle_aot.runtime_runner.sampling.philox import noise_keys
from eagle_aot.runtime_runner.sampling.processors import Processors, Rows
from eagle_aot.triton_kernels.device import launches_kernels
from eagle_aot.triton_kernels.gumbel_argmax import gumbel_argmax, perturbed

NOBODY = -1
LENGTH = 4096
"""Positions of a text, where nobody says how many there are."""


class Sampler:
    """By the cache that a text has, in the same tensors for good, as recorded rounds need.

    Shapes: S sequences, L positions. `scale` float32 [S] is 1 / temperature, 0 for the likeliest
    token; `keys` int32 [S, L, 2] are those of the noise at each position. Both, and what processors
    need, are made when a text first wants them.
    """

    def __init__(
        self, sequences: int, device: torch.device | str, length: int = LENGTH, vocab: int = 0
    ) -> None:
        self._sequences, self._device = sequences, torch.device(device)
        self._length, self._vocab = length, vocab
        self._kinds: dict[int, SamplingMode] = {}
        self._telling: set[int] = set()
        self._of_sampling = torch.zeros(sequences, 1, 1, dtype=torch.bool, device=self._device)
        self._scale: Tensor | None = None
        self._keys: Tensor | None = None
        self._processors: Processors | None = None

    @property
    def begun(self) -> set[int]:
        """The caches of texts that were begun and have not ended."""
        return set(self._kinds)

    @property
    def kind(self) -> SamplingMode:
        """What choosing for all of these takes."""
        return max(self._kinds.values(), default=SamplingMode.GREEDY)

    @property
    def wants_logprobs(self) -> bool:
        """Whether anybody is told log probabilities."""
        return bool(self._telling)

    def begin(
        self,
        sequence: int,
        sampling: SamplingParams = GREEDY,
        prompt: Sequence[int] = (),
        room: int | None = None,
        stop_ids: Iterable[int] = (),
    ) -> None:
        """A text comes to the cache `sequence`, which has `room` for so many tokens behind its
        prompt, all there are for None. Its `sampling` has a seed if it needs one."""
        self._note(sequence, sampling)
        self._of_sampling[sequence] = sampling.logprobs_of == "sampling"
        if self._scale is not None:
            self._scale[sequence] = 1 / sampling.temperature if sampling.temperature else 0.0
        if self._keys is not None and sampling.temperature:
            assert sampling.seed is not None, "a seed is drawn before"
            first = len(prompt)
            end = self._length if room is None else min(first + room, self._length)
            self._keys[sequence, first:end] = noise_keys(sampling.seed, first, end).to(self._device)
        if self._processors is not None:
            self._processors.set(sequence, sampling, prompt, list(stop_ids))

    def end(self, sequence: int) -> None:
        """The text has ended."""
        self._kinds.pop(sequence, None)
        self._telling.discard(sequence)

    def clear(self) -> None:
        """All have."""
        self._kinds.clear()
        self._telling.clear()

    @contextmanager
    def expecting(self, sampling: SamplingParams) -> Iterator[None]:
        """As if there were a text of this kind."""
        self._note(NOBODY, sampling)
        try:
            yield
        finally:
            self.end(NOBODY)

    def _note(self, sequence: int, sampling: SamplingParams) -> None:
        """What it asks for."""
        self.prepare(sampling.kind)
        self._kinds[sequence] = sampling.kind
        if sampling.logprobs is not None:
            self._telling.add(sequence)

    def prepare(self, kind: SamplingMode) -> None:
        """Have the memory that a kind of choosing needs.

        Raises UnsupportedError where it needs kernels and none can be launched.
        """
        if kind >= SamplingMode.SAMPLED and self._device.type != "cpu" and not launches_kernels():
            raise UnsupportedError(
                "sampling on a GPU: Triton can start no kernel here; install a C compiler (gcc) and"
                " Python's headers for it, or decode greedily"
            )
        if kind >= SamplingMode.SAMPLED and self._scale is None:
            shape = self._sequences, self._length, 2
            self._scale = torch.zeros(self._sequences, device=self._device)
            self._keys = torch.zeros(shape, dtype=torch.int32, device=self._device)
        if kind >= SamplingMode.PROCESSED and self._processors is None:
            self._processors = Processors(self._sequences, self._vocab, self._device)

    def processed(
        self, logits: Tensor, positions: Tensor, sequences: Tensor, paths: Tensor | None = None
    ) -> Tensor:
        """The target's logits [B, T, V] of tokens at `positions` int64 [B, T] of sequences int64
        [B], as processors leave them: minus infinity for what may not be chosen. `paths` int64
        [B, T, P] are as in `Rows`."""
        if self.kind < SamplingMode.PROCESSED:
            return logits
        assert self._processors is not None
        at = sequences.unsqueeze(1).expand_as(positions).reshape(-1)
        scale, _ = self._noise(positions.reshape(-1), at)
        rows = Rows(at, positions.reshape(-1), None if paths is None else paths.flatten(0, 1))
        with single_threaded_on_cpu(logits):
            flat = self._processors.processed(logits.flatten(0, 1).float(), scale, rows)
            return flat.view(logits.shape)

    def choose(self, processed: Tensor, positions: Tensor, sequences: Tensor) -> Tensor:
        """The target's tokens at `positions` int64 [B, T] of sequences int64 [B], from what
        `processed` returned for them: int64 [B, T]."""
        if self.kind == SamplingMode.GREEDY:
            return greedy(processed)
        at = sequences.unsqueeze(1).expand_as(positions).reshape(-1)
        with single_threaded_on_cpu(processed):
            noise = self._noise(positions.reshape(-1), at)
            return gumbel_argmax(processed.flatten(0, 1), *noise).view_as(positions)

    def logprobs(
        self, logits: Tensor, processed: Tensor, tokens: Tensor, sequences: Tensor
    ) -> Tensor:
        """What is told of `tokens` int64 [B, P] of sequences int64 [B], chosen from `processed`,
        which logits [B, P, V] became: as `packed` makes it."""
        values = logits.float()
        with single_threaded_on_cpu(logits):
            if self.kind > SamplingMode.GREEDY:
                assert self._scale is not None
                scale = torch.where(self._scale > 0, self._scale, 1.0)[sequences].view(-1, 1, 1)
                of_sampling = self._of_sampling[sequences]
                values = torch.where(of_sampling, processed * scale, values)
            return packed(values, tokens)

    def perturbed(
        self, logits: Tensor, positions: Tensor, sequences: Tensor, ids: Tensor | None = None
    ) -> Tensor:
        """A drafter's logits [B, F, Vd] for tokens at `positions` int64 [B, F], by the noise that
        the target will have there: float32 [B, F, Vd]. `ids` int32 [Vd] are the target's."""
        at = sequences.unsqueeze(1).expand_as(positions).reshape(-1)
        with single_threaded_on_cpu(logits):
            noise = self._noise(positions.reshape(-1), at)
            return perturbed(logits.flatten(0, 1), *noise, ids).view(logits.shape)

    def draft(
        self, logits: Tensor, positions: Tensor, sequences: Tensor, ids: Tensor | None = None
    ) -> Tensor:
        """The largest of `perturbed`, the first of equals: columns, int64 [B, F]."""
        if self.kind == SamplingMode.GREEDY:
            return greedy(logits)
        at = sequences.unsqueeze(1).expand_as(positions).reshape(-1)
        with single_threaded_on_cpu(logits):
            noise = self._noise(positions.reshape(-1), at)
            return gumbel_argmax(logits.flatten(0, 1), *noise, ids).view_as(positions)

    def count(self, tokens: Tensor, sequences: Tensor, counted: Tensor) -> None:
        """Tokens int64 [B, P] of sequences int64 [B] are decided where `counted` bool [B, P]."""
        if self.kind == SamplingMode.PROCESSED:
            assert self._processors is not None
            self._processors.count(sequences, tokens, counted)

    def _noise(self, positions: Tensor, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Scales float32 [R] and keys int32 [R, 2]."""
        assert self._scale is not None and self._keys is not None
        place = positions.clamp(min=0, max=self._length - 1)  # beyond it all is thrown away
        return self._scale[sequences], self._keys[sequences, place]
