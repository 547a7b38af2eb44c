"""Runs a prompt through target and drafter, chunk by chunk."""

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
    """The prompt of one sequence, run chunk by chunk.

    How a prompt is cut depends on its length alone, so what runs between two chunks changes none of
    its bits.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        prompt: Sequence[int],
        sequence: Tensor,
        reused: int = 0,
        sampler: Sampler | None = None,
        images: Sequence[PlacedImage] = (),
    ) -> None:
        """Run the prompt in `sequence` int64 [1], which has its first `reused` rows.

        `sampler` chooses the token after the last chunk, by default the likeliest. `images` stand
        where the prompt has placeholder ids.
        """
        self._target, self._drafter = target, drafter
        self._sampler = sampler or Sampler(1, sequence.device)
        self._sequence = sequence.clone()
        self._text = torch.tensor([list(prompt)], dtype=torch.int64, device=sequence.device)
        self._images = images
        self._chunks: list[Chunk] = []  # the next one last
        self.skip(reused)
        self._logprobs: Tensor | None = None

    @property
    def left(self) -> int:
        """How many tokens remain to be run."""
        return sum(map(len, self._chunks))

    @property
    def next_chunk(self) -> Chunk:
        """The chunk that runs next, of a prompt that is not done."""
        return self._chunks[-1]

    def skip(self, rows: int) -> None:
        """Continue after the first `rows` rows, which are cached: all but the last at most."""
        spans = [placed.span for placed in self._images]
        self._chunks = self._target.plan_prompt(self._text.shape[1], rows, spans)[::-1]
        if rows and isinstance(self._drafter, StatelessDrafter):
            self._drafter.restore_prefix(self._text[:, : rows + 1], self._sequence)

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """The log probabilities of the token after the last chunk, if any request wants some.

        Reading them waits for the device.
        """
        return [] if self._logprobs is None else unpack_logprobs(self._logprobs, 1)[0]

    def run_chunk(self) -> Tensor:
        """Run the next chunk. Returns the token after it, int64 [1, 1].

        The drafter observes each of the chunk's rows with the token after it.
        """
        chunk = self._chunks.pop()
        positions = torch.arange(chunk.start, chunk.stop, device=self._text.device)
        tokens = self._text[:, chunk.start : chunk.stop]
        embeds: InputEmbeds | None = None
        if self._images and not chunk.few_rows:
            embeds = self._target.input_embeds(chunk, self._images)
        if self._sampler.is_constrained:  # first: reading the sequence must not wait
            self._sampler.masks.fill_answer(self._sequence)
        logits, features = self._target.run_prompt(tokens, positions, self._sequence, chunk, embeds)
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
        """Choose the token at `position` from logits [1, 1, V]. Returns int64 [1, 1]."""
        sampler, sequence = self._sampler, self._sequence
        positions = torch.full_like(self._text[:, :1], position)
        processed = sampler.processed(logits, positions, sequence)
        token = sampler.choose(processed, positions, sequence)
        if not self._chunks:
            sampler.count(token, sequence, torch.ones_like(token, dtype=torch.bool))
            if sampler.wants_logprobs:
                self._logprobs = sampler.logprobs(logits, processed, token, sequence)
        return token


def prefill(round_: Round, prompt: Sequence[int], stats: Stats, index: int = 0) -> int:
    """Run the prompt of the sequence at `index`, prepare the round for it, and return the first new
    token."""
    sequence = round_.batch.sequences[index : index + 1]
    run = Prefill(round_.target, round_.drafter, prompt, sequence, sampler=round_.batch.sampler)
    while run.left:
        bonus = run.run_chunk()
        stats.prefill_chunks += 1
    round_.batch.place(bonus, len(prompt), index)
    return int(bonus)
