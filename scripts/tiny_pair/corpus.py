"""Stories as token rows, and batches of them, built on the device that trains.

B rows in a batch, T columns. One row is one chat: ``<bos>`` user turn, model turn, ``<turn|>``.
"""

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tiny_pair.stories import Split, Story, stories
from tiny_pair.tokenizer import TURN_END, chat_frame

# Rows are padded to a multiple of this, so that only a few shapes ever occur.
LENGTH_STEP = 16
STORIES_PER_SHARD = 20_000


@dataclass(frozen=True, slots=True)
class Batch:
    """`tokens` int64 [B, T], right-padded; `answer`, `valid` bool [B, T].

    `valid` marks what is not padding, `answer` the model's own tokens, the end of turn included.
    """

    tokens: Tensor
    answer: Tensor
    valid: Tensor


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token rows, one after the other.

    `flat` int16 [sum of lengths] lies on the training device; `lengths` and `answer_starts` int64
    [rows] stay on the host, so that making a batch never waits for the device.
    """

    flat: Tensor
    lengths: Tensor
    answer_starts: Tensor
    offsets: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", self.lengths.cumsum(0) - self.lengths)

    def batches(self, tokens_per_batch: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yields batches without end, epoch after epoch, in a random order.

        Rows of one batch have about the same length; padding counts towards `tokens_per_batch`.
        """
        groups = self._groups(tokens_per_batch)
        while True:
            for i in torch.randperm(len(groups), generator=generator).tolist():
                yield self.batch(groups[i])

    def batch(self, rows: Tensor) -> Batch:
        """The rows int64 [B] as one batch, on the device of `flat`."""
        device = self.flat.device
        spans = torch.stack((self.offsets[rows], self.lengths[rows], self.answer_starts[rows]))
        offsets, lengths, starts = spans.to(device, non_blocking=True).unsqueeze(-1)
        column = torch.arange(_padded(int(self.lengths[rows].max())), device=device)
        valid = column < lengths
        # <pad> is id 0, and padding columns may point past the end.
        index = (offsets + column).clamp(max=len(self.flat) - 1)
        tokens = self.flat[index].long() * valid
        return Batch(tokens, valid & (column >= starts), valid)

    def _groups(self, tokens_per_batch: int) -> list[Tensor]:
        """Splits the rows, shortest first, into groups that fill a batch: int64 [B] each."""
        by_length = self.lengths.argsort(stable=True)
        groups, first = [], 0
        while first < len(by_length):
            rows = by_length[
                first : first + tokens_per_batch // int(self.lengths[by_length[first]])
            ]
            # Rows ascend in length, so the last one bounds the width of any part of them.
            rows = rows[: max(1, tokens_per_batch // _padded(int(self.lengths[rows[-1]])))]
            groups.append(rows)
            first += len(rows)
        return groups


def _padded(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def build_corpus(
    tokenizer: PreTrainedTokenizerFast, count: int, seed: int, device: torch.device
) -> Corpus:
    """Tells and tokenises `count` stories of the training split, on all CPU cores."""
    text = tokenizer.backend_tokenizer.to_str()
    frame = chat_frame(tokenizer)
    shards = -(-count // STORIES_PER_SHARD)
    sizes = [min(STORIES_PER_SHARD, count - i * STORIES_PER_SHARD) for i in range(shards)]
    jobs = [(text, frame, seed * 1_000_003 + i, size) for i, size in enumerate(sizes)]
    if shards == 1:
        parts = [_tell_shard(*jobs[0])]
    else:
        # spawn: a forked child must not inherit the state of CUDA or of the tokenizer's threads.
        workers = min(shards, os.cpu_count() or 1)
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(_tell_shard, *zip(*jobs, strict=True)))
    flat, lengths, starts = (
        torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parts, strict=True)
    )
    return Corpus(flat.to(device), lengths, starts)


def corpus_of_rows(rows: list[tuple[list[int], int]], device: torch.device) -> Corpus:
    """A corpus of given (token row, where the answer starts) pairs."""
    flat = torch.tensor([token for ids, _ in rows for token in ids], dtype=torch.int16)
    lengths = torch.tensor([len(ids) for ids, _ in rows])
    return Corpus(flat.to(device), lengths, torch.tensor([start for _, start in rows]))


def first_stories(count: int, seed: int, split: Split) -> list[Story]:
    """The first `count` stories of a split."""
    return list(itertools.islice(stories(seed, split), count))


def _tell_shard(
    tokenizer_json: str, frame: tuple[str, str], seed: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One process's share of a corpus: (flat int16, lengths int64, answer starts int64)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    # Padding is a state of the tokenizer, left behind by whoever last encoded a batch with it.
    tokenizer.no_padding()
    told = first_stories(count, seed, "train")
    prompts = [frame[0] + story.question + frame[1] for story in told]
    answers = [story.answer + TURN_END for story in told]
    encode = tokenizer.encode_batch_fast
    rows = zip(
        (e.ids for e in encode(prompts, add_special_tokens=False)),
        (e.ids for e in encode(answers, add_special_tokens=False)),
        strict=True,
    )
    pairs = [(len(prompt), prompt + answer) for prompt, answer in rows]
    flat = np.fromiter(itertools.chain.from_iterable(ids for _, ids in pairs), np.int16)
    lengths = np.array([len(ids) for _, ids in pairs], np.int64)
    return flat, lengths, np.array([start for start, _ in pairs], np.int64)
