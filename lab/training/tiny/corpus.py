"""Stories as token rows: one row is one chat, ``<bos>`` user turn, model turn, ``<turn|>``."""

import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from eagle_aot.lab.training.heads.corpus import Corpus
from eagle_aot.lab.training.tiny.stories import Split, Story, stories
from eagle_aot.lab.training.tiny.tokenizer import TURN_END, chat_frame

STORIES_PER_SHARD = 20_000


def build_corpus(
    tokenizer: PreTrainedTokenizerFast, count: int, seed: int, device: torch.device
) -> Corpus:
    """Make and tokenise `count` stories of the training split, on all CPU cores."""
    text = tokenizer.backend_tokenizer.to_str()
    frame = chat_frame(tokenizer)
    shards = -(-count // STORIES_PER_SHARD)
    sizes = [min(STORIES_PER_SHARD, count - i * STORIES_PER_SHARD) for i in range(shards)]
    jobs = [(text, frame, seed * 1_000_003 + i, size) for i, size in enumerate(sizes)]
    if shards == 1:
        parts = [_build_shard(*jobs[0])]
    else:
        # spawn: a forked child must not inherit the state of CUDA or of the tokenizer's threads.
        workers = min(shards, os.cpu_count() or 1)
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(_build_shard, *zip(*jobs, strict=True)))
    flat, lengths, starts = (
        torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parts, strict=True)
    )
    return Corpus(flat.to(device), lengths, starts)


def first_stories(count: int, seed: int, split: Split) -> list[Story]:
    """Return the first `count` stories of a split."""
    return list(itertools.islice(stories(seed, split), count))


def _build_shard(
    tokenizer_json: str, frame: tuple[str, str], seed: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one process's share of a corpus: (flat int16, lengths int64, answer starts int64)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    # The last batch that was encoded may have left padding switched on.
    tokenizer.no_padding()
    training_stories = first_stories(count, seed, "train")
    prompts = [frame[0] + story.question + frame[1] for story in training_stories]
    answers = [story.answer + TURN_END for story in training_stories]
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
