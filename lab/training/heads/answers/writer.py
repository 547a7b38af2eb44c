"""Write many answers at once: a slot whose answer has ended takes the next prompt.

The host looks at the slots once in `STEPS_BETWEEN_LOOKS` steps and never in between.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from eagle_aot.lab.training.heads.answers.slots import SlotView, new_store, prefill
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget

STEPS_BETWEEN_LOOKS = 16
LENGTH_STEP = 32
"""Slots attend to a multiple of this many positions: a recorded graph for each."""
PROMPT_STEP = 32
PREFILL_TOKENS = 65_536
"""At once, padding included."""
FEW_SLOTS = 256
SMALLEST_NOISE = 1e-20
"""Of exponential noise, whose logarithm must be finite."""


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """A prompt to answer: its number, its token ids and the temperature, 0 for greedy."""

    number: int
    ids: Sequence[int]
    temperature: float


@dataclass(frozen=True, slots=True)
class TrainingAnswer:
    """An answer as token ids, its stop id included where it has one."""

    request: TrainingPrompt
    ids: list[int]


class AnswerWriter:
    """Writes answers in slots, as many at once as there are slots."""

    def __init__(
        self,
        target: FrozenTarget,
        *,
        slots: int,
        longest_prompt: int,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        seed: int,
    ) -> None:
        device = target.device
        self.target, self.max_new_tokens = target, max_new_tokens
        self.length = _up(longest_prompt + max_new_tokens + STEPS_BETWEEN_LOOKS, LENGTH_STEP)
        self._store = new_store(target, slots, self.length)
        self._stop_ids = torch.tensor(list(stop_ids), dtype=torch.int64, device=device)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        # The state that steps change, all of it in place. A slot that is done stays where it is.
        self._tokens = torch.zeros(slots, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._tokens)
        self._counts = torch.zeros_like(self._tokens)
        self._done = torch.ones(slots, dtype=torch.bool, device=device)
        self._temperatures = torch.zeros(slots, 1, device=device)
        # The last column takes the tokens that a finished slot still chooses.
        self._answers = torch.zeros(slots, max_new_tokens + 1, dtype=torch.int64, device=device)
        self._noise = torch.ones(slots, target.facts.vocab_size, device=device)
        self._running: dict[int, TrainingPrompt] = {}

    @torch.no_grad()
    def write(self, requests: Iterable[TrainingPrompt]) -> Iterator[list[TrainingAnswer]]:
        """Yield answers as they end, some at a time, in no particular order."""
        waiting = iter(requests)
        while True:
            free = [slot for slot in range(len(self._done)) if slot not in self._running]
            self._start(free, list(islice(waiting, len(free))))
            if not self._running:
                return
            yield self._advance()

    def _start(self, free: Sequence[int], requests: Sequence[TrainingPrompt]) -> None:
        """Put prompts into slots; the first step reads the last token of each."""
        by_length = sorted(requests, key=lambda request: len(request.ids))
        taken = list(zip(free, by_length, strict=False))
        while taken:
            width = _up(len(taken[-1][1].ids), PROMPT_STEP)
            count = max(1, PREFILL_TOKENS // width)
            self._prefill(taken[-count:], width)
            del taken[-count:]

    def _prefill(self, taken: Sequence[tuple[int, TrainingPrompt]], width: int) -> None:
        rows = [[*request.ids, *[0] * (width - len(request.ids))] for _, request in taken]
        facts = [[slot, request.ids[-1], len(request.ids) - 1] for slot, request in taken]
        device = self.target.device
        slots, last, positions = torch.tensor(facts, device=device).unbind(1)
        prefill(self.target, self._store, slots, torch.tensor(rows, device=device))
        self._tokens[slots], self._positions[slots] = last, positions
        self._counts[slots], self._done[slots] = 0, False
        temperatures = [[request.temperature] for _, request in taken]
        self._temperatures[slots] = torch.tensor(temperatures, device=device)
        self._running.update(taken)

    def _advance(self) -> list[TrainingAnswer]:
        """Run some steps and return the answers that ended in them."""
        attended = _up(int(self._positions.max()) + STEPS_BETWEEN_LOOKS, LENGTH_STEP)
        for _ in range(STEPS_BETWEEN_LOOKS):
            self._step(attended)
        counts, done = torch.stack((self._counts, self._done.long())).tolist()
        ended = [slot for slot in self._running if done[slot]]
        answers = self._answers[torch.tensor(ended, dtype=torch.int64)].tolist()
        return [
            TrainingAnswer(self._running.pop(slot), answer[: counts[slot]])
            for slot, answer in zip(ended, answers, strict=True)
        ]

    def _step(self, attended: int) -> None:
        """Decode one token for every slot; on a GPU, replay a recorded graph."""
        if any(request.temperature for request in self._running.values()):
            self._noise.exponential_(generator=self._generator)
        if self._pool is None:
            return self._decode(attended)
        if attended in self._graphs:
            return self._graphs[attended].replay()
        self._decode(attended)  # loads whatever is loaded lazily
        self._graphs[attended] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graphs[attended], pool=self._pool):
            self._decode(attended)

    def _decode(self, attended: int) -> None:
        """Choose a token for every slot and store it: nothing here waits for the device."""
        view = SlotView(self._store, self._positions, attended)
        rows = self._tokens.unsqueeze(1), self._positions.unsqueeze(1)
        logits = self.target.step(*rows, lambda cache: view)[:, 0]
        # Gumbel noise times the temperature: greedy where that is zero.
        noise = self._noise.clamp(min=SMALLEST_NOISE).log() * self._temperatures
        chosen = (logits - noise).argmax(-1)
        done = self._done
        index = self._counts.masked_fill(done, self.max_new_tokens).unsqueeze(1)
        self._answers.scatter_(1, index, chosen.unsqueeze(1))
        self._counts += ~done
        self._positions += ~done
        self._tokens.copy_(torch.where(done, self._tokens, chosen))
        stopped = (chosen.unsqueeze(1) == self._stop_ids).any(1)
        self._done |= stopped | (self._counts >= self.max_new_tokens)


def answer_greedily(
    target: FrozenTarget,
    prompts: Sequence[Sequence[int]],
    stop_ids: Sequence[int],
    max_new_tokens: int,
) -> list[tuple[list[int], int]]:
    """Return (ids of prompt and answer, index where the answer starts) of each prompt, in order."""
    writer = AnswerWriter(
        target,
        slots=min(len(prompts), FEW_SLOTS),
        longest_prompt=max(map(len, prompts)),
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        seed=0,
    )
    requests = (TrainingPrompt(number, ids, 0.0) for number, ids in enumerate(prompts))
    answers = [answer for ended in writer.write(requests) for answer in ended]
    answers.sort(key=lambda answer: answer.request.number)
    return [([*a.request.ids, *a.ids], len(a.request.ids)) for a in answers]


def _up(length: int, step: int) -> int:
    return -(-length // step) * step
