"""A prompt on its way through target and drafter."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import committed
from eagle_aot.runtime_runner.decode.input_embeds import InputEmbeds
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.round import Drafter, ReadsImages, Round, StatelessDrafter
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.decode.target import Target
from eagle_aot.runtime_runner.images.prompt_image import PlacedImage
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs, unpack_logprobs
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class Prefill:
    """Chunk after chunk of one sequence.

    How a prompt is cut depends on nothing but its length, so what happens between two chunks
    changes no bit of it.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        prompt: Sequence[int],
        sequence: Tensor,
        kept: int = 0,
        sampler: Sampler | None = None,
        images: Sequence[PlacedImage] = (),
    ) -> None:
        """Of the sequence int64 [1], whose first `kept` rows are there. What a drafter is shown of
        a chunk ends with the token after the chunk. `sampler` chooses that behind the last chunk,
        the likeliest where it is None. `images` stand where the prompt has ids for their
        rows."""
        self._target, self._drafter = target, drafter
        self._sampler = sampler or Sampler(1, sequence.device)
        self._sequence = sequence.clone()
        self._text = torch.tensor([list(prompt)], dtype=torch.int64, device=sequence.device)
        self._images = images
        self._chunks: list[Chunk] = []
        self.skip(kept)
        self._told: Tensor | None = None

    @property
    def left(self) -> int:
        """Tokens to go."""
        return sum(map(len, self._chunks))

    @property
    def next_chunk(self) -> Chunk:
        """What is run next, of a prompt that is not done."""
        return self._chunks[-1]

    def skip(self, rows: int) -> None:
        """The first rows are there by now, all but the last at most."""
        self._chunks = self._planned(rows)
        if rows and isinstance(self._drafter, StatelessDrafter):
            self._drafter.recall(self._text[:, : rows + 1], self._sequence)

    def _planned(self, kept: int) -> list[Chunk]:
        """Chunks to go, the next one last."""
        target, length = self._target, self._text.shape[1]
        if not self._images:
            return target.plan_prompt(length, kept)[::-1]
        return target.plan_around(length, [placed.span for placed in self._images], kept)[::-1]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """Of the token behind the last chunk, where anybody is told any: waits for the device."""
        return [] if self._told is None else unpack_logprobs(self._told, 1)[0]

    def run_chunk(self) -> Tensor:
        """The next one. Returns the token behind it, int64 [1, 1]."""
        chunk = self._chunks.pop()
        positions = torch.arange(chunk.start, chunk.stop, device=self._text.device)
        tokens = self._text[:, chunk.start : chunk.stop]
        rows, target = (tokens, positions, self._sequence, chunk), self._target
        embeds: InputEmbeds | None = None
        if self._images and not chunk.few_rows:
            embeds = target.given_rows(chunk, self._images)
            logits, features = target.run_given(*rows, embeds)
        else:
            logits, features = target.run_prompt(*rows)
        bonus = self._choose(logits[:, -1:], chunk.stop)
        if self._drafter:
            following = torch.cat((self._text, bonus), dim=1)[:, chunk.start + 1 : chunk.stop + 1]
            accepted = committed(following, positions, self._sequence)
            if embeds is not None and isinstance(self._drafter, ReadsImages):
                self._drafter.observe_images(accepted, features, embeds)
            else:
                self._drafter.observe(accepted, features)
        return bonus

    def _choose(self, logits: Tensor, position: int) -> Tensor:
        """The token at `position`, int64 [1, 1], from logits [1, 1, V]."""
        sampler, where = self._sampler, self._sequence
        place = torch.full_like(self._text[:, :1], position)
        processed = sampler.processed(logits, place, where)
        token = sampler.choose(processed, place, where)
        if not self._chunks:
            sampler.count(token, where, torch.ones_like(token, dtype=torch.bool))
            if sampler.wants_logprobs:
                self._told = sampler.logprobs(logits, processed, token, where)
        return token


def prefill(round_: Round, prompt: Sequence[int], stats: Stats, index: int = 0) -> int:
    """Run the prompt of the sequence at `index`, prepare the round for it, and return the first new
    token."""
    sequence = round_.batch.sequences[index : index + 1]
    sampler = round_.batch.sampler
    run = Prefill(round_.target, round_.drafter, prompt, sequence, sampler=sampler)
    while run.left:
        bonus = run.run_chunk()
        stats.prefill_chunks += 1
    round_.batch.place(bonus, len(prompt), index)
    return int(bonus)
