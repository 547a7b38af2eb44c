"""Chooses the tokens of all sequences of an artifact: the likeliest ones, or by shared noise."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.threads import single_threaded_on_cpu
from eagle_aot.runtime_runner.sampling.constraint import Constraint
from eagle_aot.runtime_runner.sampling.logprobs import pack_logprobs
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingMode, SamplingParams
from eagle_aot.runtime_runner.sampling.processors import Processors, Rows
from eagle_aot.runtime_runner.sampling.token_masks import ROWS, TokenMasks
from eagle_aot.triton_kernels.device import launches_for, launches_kernels
from eagle_aot.triton_kernels.gumbel_argmax import gumbel_argmax, perturbed

RESERVED = -1
"""Stands for a sequence that may begin later."""
LENGTH = 4096
"""Positions of a sequence, unless the number is given."""
BLOCKS = 256
"""Maximum number of blocks of a vocabulary whose largest logits are found in parallel."""


class Sampler:
    """Sampling parameters by sequence, always in the same tensors, as recorded rounds need.

    Shapes: S sequences, L positions. `scale` float32 [S] is 1 / temperature, 0 for the likeliest
    token; `keys` int32 [S, L, 2] are the keys of the noise at each position. Both, and what the
    processors need, are allocated when a request first needs them.
    """

    def __init__(
        self,
        sequences: int,
        device: torch.device | str,
        length: int = LENGTH,
        vocab: int = 0,
        max_rows: int = ROWS,
    ) -> None:
        """`max_rows` is the largest number of rows whose tokens are chosen together."""
        self._sequences, self._device = sequences, torch.device(device)
        self._length, self._vocab = length, vocab
        self._modes: dict[int, SamplingMode] = {}
        self._with_logprobs: set[int] = set()
        self.masks = TokenMasks(sequences, vocab, self._device, max_rows)
        self._of_sampling = torch.zeros(sequences, 1, 1, dtype=torch.bool, device=self._device)
        self._scale: Tensor | None = None
        self._keys: Tensor | None = None
        self._processors: Processors | None = None

    @property
    def active(self) -> set[int]:
        """The sequences of requests that have begun and not ended."""
        return set(self._modes)

    @property
    def mode(self) -> SamplingMode:
        """The mode that serves all active requests."""
        return max(self._modes.values(), default=SamplingMode.GREEDY)

    @property
    def wants_logprobs(self) -> bool:
        """Whether an active request returns log probabilities."""
        return bool(self._with_logprobs)

    @property
    def is_constrained(self) -> bool:
        """Whether the host decides which tokens an active request may have, by `masks`."""
        return bool(self.masks)

    @property
    def reads_largest_only(self) -> bool:
        """Whether the largest of a row's logits is all that active requests need."""
        return self.mode == SamplingMode.GREEDY and not (self.wants_logprobs or self.is_constrained)

    def begin(
        self,
        sequence: int,
        sampling: SamplingParams = GREEDY,
        prompt: Sequence[int] = (),
        max_new_tokens: int | None = None,
        stop_ids: Iterable[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        """Begin a request in `sequence`, with a seed if it samples.

        Its tokens are those that `constraint` allows. Without `max_new_tokens` it may fill all
        positions.
        """
        self._add(sequence, sampling)
        if constraint is not None:
            self.masks.begin(sequence, constraint)
        self._of_sampling[sequence] = sampling.logprobs_of == "sampling"
        if self._scale is not None:
            self._scale[sequence] = 1 / sampling.temperature if sampling.temperature else 0.0
        if self._keys is not None and sampling.temperature:
            assert sampling.seed is not None, "a seed must be drawn before"
            first, end = len(prompt), self._length
            if max_new_tokens is not None:
                end = min(first + max_new_tokens, end)
            self._keys[sequence, first:end] = noise_keys(sampling.seed, first, end).to(self._device)
        if self._processors is not None:
            self._processors.set(sequence, sampling, prompt, list(stop_ids))

    def end(self, sequence: int) -> None:
        """End the request in a sequence."""
        self._modes.pop(sequence, None)
        self._with_logprobs.discard(sequence)
        self.masks.end(sequence)

    def clear(self) -> None:
        """End all requests."""
        self._modes.clear()
        self._with_logprobs.clear()
        self.masks.clear()

    @contextmanager
    def reserve(self, sampling: SamplingParams) -> Iterator[None]:
        """Act as if a request with these parameters were active, so that its rounds are made."""
        self._add(RESERVED, sampling)
        try:
            yield
        finally:
            self.end(RESERVED)

    def _add(self, sequence: int, sampling: SamplingParams) -> None:
        self.prepare(sampling.mode)
        self._modes[sequence] = sampling.mode
        if sampling.logprobs is not None:
            self._with_logprobs.add(sequence)

    def prepare(self, mode: SamplingMode) -> None:
        """Allocate the memory that a mode needs.

        Raises UnsupportedError if it needs kernels and none can be launched.
        """
        if mode >= SamplingMode.SAMPLED and self._device.type != "cpu" and not launches_kernels():
            raise UnsupportedError(
                "sampling on a GPU: Triton can start no kernel here; install a C compiler (gcc) and"
                " Python's headers for it, or decode greedily"
            )
        if mode >= SamplingMode.SAMPLED and self._scale is None:
            shape = self._sequences, self._length, 2
            self._scale = torch.zeros(self._sequences, device=self._device)
            self._keys = torch.zeros(shape, dtype=torch.int32, device=self._device)
        if mode >= SamplingMode.PROCESSED and self._processors is None:
            self._processors = Processors(self._sequences, self._vocab, self._device)

    def processed(
        self, logits: Tensor, positions: Tensor, sequences: Tensor, paths: Tensor | None = None
    ) -> Tensor:
        """Apply the logits processors to the target's logits [B, T, V]; same shape.

        The logits choose the tokens at `positions` int64 [B, T] of `sequences` int64 [B]. Tokens
        that may not be chosen have minus infinity. `paths` int64 [B, T, P] are as in `Rows`. While
        `is_constrained`, `masks` must have been filled for these rows.
        """
        if self.mode < SamplingMode.PROCESSED:
            return logits
        assert self._processors is not None
        row_sequences = by_row(sequences, positions)
        scale, _ = self._noise(positions, sequences)
        path_rows = None if paths is None else paths.flatten(0, 1)
        bitmask = self.masks.bitmask(positions.numel()) if self.is_constrained else None
        rows = Rows(row_sequences, positions.reshape(-1), path_rows, bitmask)
        with single_threaded_on_cpu(logits):
            flat = self._processors.processed(logits.flatten(0, 1).float(), scale, rows)
            return flat.view(logits.shape)

    def logprobs(
        self, logits: Tensor, processed: Tensor, tokens: Tensor, sequences: Tensor
    ) -> Tensor:
        """Return the packed log probabilities of `tokens` int64 [B, P] of `sequences` int64 [B].

        They were chosen from `processed`, which logits [B, P, V] became. See `pack_logprobs`.
        """
        values = logits.float()
        with single_threaded_on_cpu(logits):
            if self.mode > SamplingMode.GREEDY:
                scale = self.scales(sequences).view(-1, 1, 1)
                of_sampling = self._of_sampling[sequences]
                values = torch.where(of_sampling, processed * scale, values)
            return pack_logprobs(values, tokens)

    def perturbed(
        self, logits: Tensor, positions: Tensor, sequences: Tensor, ids: Tensor | None = None
    ) -> Tensor:
        """Perturb a drafter's logits [B, F, Vd] by the noise that the target will have there.

        They are for tokens at `positions` int64 [B, F] of `sequences` int64 [B]. `ids` int32 [Vd]
        are the target's ids of the columns. Returns float32 [B, F, Vd].
        """
        with single_threaded_on_cpu(logits):
            noise = self._noise(positions, sequences)
            return perturbed(logits.flatten(0, 1), *noise, ids).view(logits.shape)

    def scales(self, sequences: Tensor) -> Tensor:
        """Return what `perturbed` multiplies logits of `sequences` int64 [B] by, float32 [B]: 1 for
        a request without noise."""
        assert self._scale is not None
        scale = self._scale[sequences]
        return torch.where(scale > 0, scale, 1.0)

    def choose(
        self, logits: Tensor, positions: Tensor, sequences: Tensor, ids: Tensor | None = None
    ) -> Tensor:
        """Choose tokens at `positions` int64 [B, T] of `sequences` int64 [B].

        `logits` [B, T, V] are the target's, as `processed` returns them, or a drafter's with the
        target's `ids` int32 [V] of the columns. Returns the columns of the largest of `perturbed`,
        the first of equals: int64 [B, T].
        """
        if self.mode == SamplingMode.GREEDY:
            return greedy(logits)
        with single_threaded_on_cpu(logits):
            noise = self._noise(positions, sequences)
            return gumbel_argmax(logits.flatten(0, 1), *noise, ids).view_as(positions)

    def count(self, tokens: Tensor, sequences: Tensor, counted: Tensor) -> None:
        """Count `tokens` int64 [B, P] of `sequences` int64 [B] as generated, where `counted` bool
        [B, P]."""
        if self.mode == SamplingMode.PROCESSED:
            assert self._processors is not None
            self._processors.count(sequences, tokens, counted)

    def _noise(self, positions: Tensor, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scales float32 [B * T] and the keys int32 [B * T, 2] of all rows."""
        assert self._scale is not None and self._keys is not None
        rows = by_row(sequences, positions)
        # What is chosen beyond the last position is not used.
        positions = positions.reshape(-1).clamp(min=0, max=self._length - 1)
        return self._scale[rows], self._keys[rows, positions]


def by_row(sequences: Tensor, positions: Tensor) -> Tensor:
    """Return the sequence of each row: int64 [B], for positions [B, T] -> int64 [B * T]."""
    return sequences.unsqueeze(1).expand_as(positions).reshape(-1)


def greedy(logits: Tensor) -> Tensor:
    """Return the index of the largest of float logits [B, T, V], the first of equals: int64 [B, T].

    It is searched in blocks, then among their winners: one reduction over V would give a GPU only
    as many programs as there are rows. PyTorch's operators take four kernels, Triton's are two.
    """
    if launches_for(logits) and (len(logits) == 1 or logits.is_contiguous()):  # others are copied
        from eagle_aot.triton_kernels.gumbel_argmax.kernel import launch_argmax

        return launch_argmax(logits.flatten(0, 1)).view(logits.shape[:-1])
    vocab = logits.shape[-1]
    blocks = next(count for count in range(BLOCKS, 0, -1) if vocab % count == 0)
    size = vocab // blocks
    with single_threaded_on_cpu(logits):
        largest, within = logits.unflatten(-1, (blocks, size)).max(dim=-1)
        block = largest.argmax(dim=-1, keepdim=True)
        return torch.add(within.gather(-1, block), block, alpha=size).squeeze(-1)


PHILOX_FACTORS = 0xD2511F53, 0xCD9E8D57
PHILOX_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
PHILOX_ROUNDS = 10
WORD = 0xFFFFFFFF


def philox(counter: Tensor, seed: int) -> Tensor:
    """Return random bits of counters by Philox4x32-10 (Salmon et al., 2011).

    `counter` int64 [N, 4] has words of 32 bits; `seed` is a key of 64 bits. Returns int64 [N, 4],
    32 random bits each, which are the same on every machine.
    """
    c0, c1, c2, c3 = counter.unbind(1)
    k0, k1 = seed & WORD, seed >> 32 & WORD
    for _ in range(PHILOX_ROUNDS):
        low, high = c0 * PHILOX_FACTORS[0], c2 * PHILOX_FACTORS[1]  # 64 bits may wrap around
        c0, c1 = (high >> 32 & WORD) ^ c1 ^ k0, high & WORD
        c2, c3 = (low >> 32 & WORD) ^ c3 ^ k1, low & WORD
        k0, k1 = k0 + PHILOX_KEY_STEPS[0] & WORD, k1 + PHILOX_KEY_STEPS[1] & WORD
    return torch.stack((c0, c1, c2, c3), dim=1)


def noise_keys(seed: int, first: int, end: int) -> Tensor:
    """Return the keys of the noise at positions `first` to `end`: int32 [end - first, 2]."""
    counter = torch.zeros(end - first, 4, dtype=torch.int64)
    counter[:, 0] = torch.arange(first, end)
    bits = philox(counter, seed)[:, :2]
    return torch.where(bits >> 31 > 0, bits - (1 << 32), bits).int()
