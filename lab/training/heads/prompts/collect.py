"""All prompts of a run, from a file and from templates."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.prompts import is_ids, read_prompts
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.export.loading.tokenizer import convert_tokenizer
from eagle_aot.lab.training.heads.prompts.made import Conversation, made_conversations
from eagle_aot.lab.training.heads.run import Run

CONVERSATIONS_PER_TASK = 20_000


def collect_prompts(run: Run) -> list[list[int]]:
    """Return distinct prompts as token ids, the user's first.

    Raises SettingError if there are too few to hold any out.
    """
    spec = run.spec
    rows: list[list[int]] = []
    conversations: list[Conversation] = []
    if spec.prompts_jsonl is not None:
        for prompt in read_prompts(None, None, spec.prompts_jsonl):
            if isinstance(prompt, str):
                conversations.append([{"role": "user", "content": prompt}])
            elif is_ids(prompt):
                rows.append(prompt)
            else:
                raise PromptError(
                    f"{spec.prompts_jsonl}: conversations are not trained on: name prompts"
                )
    conversations += made_conversations(spec.prompts, spec.seed)
    rows += encode_conversations(conversations, run.tokenizer_dir, spec.longest_prompt)
    distinct = list(dict.fromkeys(tuple(row) for row in rows if len(row) <= spec.longest_prompt))
    if len(distinct) <= 2 * spec.held_out:
        raise SettingError(
            f"{len(distinct)} prompts of at most {spec.longest_prompt} tokens are too few to hold "
            f"{spec.held_out} out: use more --prompts or fewer --held-out"
        )
    return [list(row) for row in distinct]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts as rows of `flat`, integers [sum of lengths]; `offsets` int64 [prompts + 1]."""

    flat: Tensor
    offsets: Tensor

    @classmethod
    def of_lengths(cls, flat: Tensor, lengths: Tensor) -> "PromptSet":
        """Split `flat` into rows of `lengths` int64 [prompts]."""
        return cls(flat, torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def ids(self, number: int) -> list[int]:
        """Return the token ids of one prompt."""
        first, end = self.offsets[number : number + 2].tolist()
        return self.flat[first:end].to(torch.int64).tolist()


def encode_conversations(
    conversations: Iterable[Conversation], directory: Path, longest: int
) -> list[list[int]]:
    """Return the token ids of each conversation of at most `longest` tokens, using all CPU cores.

    `directory` contains the tokenizer.
    """
    parts = list(_parts(conversations))
    encode = partial(_encode, directory, longest)
    if len(parts) < 2:
        return list(itertools.chain.from_iterable(map(encode, parts)))
    # spawn: a forked child must not inherit the state of CUDA or of the tokenizer's threads.
    workers = min(len(parts), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(itertools.chain.from_iterable(pool.map(encode, parts)))


def _parts(conversations: Iterable[Conversation]) -> Iterator[list[Conversation]]:
    rest = iter(conversations)
    while part := list(itertools.islice(rest, CONVERSATIONS_PER_TASK)):
        yield part


def _encode(
    directory: Path, longest: int, conversations: Sequence[Conversation]
) -> list[list[int]]:
    tokenizer = convert_tokenizer(directory)
    rows = (encode_conversation(tokenizer, conversation) for conversation in conversations)
    return [ids for ids in rows if len(ids) <= longest]


def encode_conversation(tokenizer: Tokenizer, conversation: Conversation) -> list[int]:
    """Return a conversation's token ids up to the model's turn; without a template, its last turn.

    Raises ArtifactError if the template refuses it.
    """
    if not tokenizer.has_template or len(conversation) == 1:
        return tokenizer.encode(conversation[-1]["content"])
    return tokenizer.ids(tokenizer.render(conversation), add_special_tokens=False)
