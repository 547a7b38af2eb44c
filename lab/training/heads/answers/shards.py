"""Answers on disk, in files of many answers, so that an interrupted run can be resumed."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from eagle_aot.common.errors import CheckpointError
from eagle_aot.common.tensors import save_tensors
from eagle_aot.lab.training.heads.answers.writer import TrainingAnswer
from eagle_aot.lab.training.heads.corpus import Corpus


class AnswerShards:
    """A directory of such files; `identity` describes what all of them were made from.

    A file holds for every text the ids of prompt and answer, their count, the index where the
    answer starts, and the prompt's number.
    """

    def __init__(self, directory: Path, vocab_size: int, identity: str) -> None:
        """Read the files that exist. Raises CheckpointError for files of another run."""
        self.directory, self.vocab_size, self.identity = directory, vocab_size, identity
        self._parts = [self._read(path) for path in sorted(directory.glob("*.safetensors"))]

    @property
    def numbers(self) -> set[int]:
        """The numbers of all prompts that have been answered."""
        return {number for part in self._parts for number in part["numbers"].tolist()}

    @property
    def answer_tokens(self) -> int:
        """The number of answer tokens in all files."""
        return sum(int((part["lengths"] - part["starts"]).sum()) for part in self._parts)

    def add(self, answers: Sequence[TrainingAnswer]) -> None:
        """Write one more file."""
        rows = [[*answer.request.ids, *answer.ids] for answer in answers]
        part = {
            "flat": small(torch.tensor([i for row in rows for i in row]), self.vocab_size),
            "lengths": torch.tensor([len(row) for row in rows], dtype=torch.int32),
            "starts": torch.tensor([len(a.request.ids) for a in answers], dtype=torch.int32),
            "numbers": torch.tensor([a.request.number for a in answers], dtype=torch.int32),
        }
        path = self.directory / f"{len(self._parts):05}.safetensors"
        write_tensors(part, path, self.identity)
        self._parts.append(part)

    def corpora(self, held_out: int, device: torch.device) -> tuple[Corpus, Corpus]:
        """Return the texts to train on, and those of the first `held_out` greedy prompts."""
        lengths, starts, numbers = (self._joined(name) for name in ("lengths", "starts", "numbers"))
        flat = self._joined("flat")
        is_held_out = (numbers < 2 * held_out) & is_greedy(numbers)
        return (
            _corpus(flat, lengths, starts, ~is_held_out, device),
            _corpus(flat, lengths, starts, is_held_out, device),
        )

    def _joined(self, name: str) -> Tensor:
        wide = torch.int32 if name == "flat" else torch.int64
        none = torch.empty(0, dtype=wide)
        return torch.cat([none, *(part[name].to(wide) for part in self._parts)])

    def _read(self, path: Path) -> dict[str, Tensor]:
        return read_tensors(path, self.identity)


def is_greedy(number: Tensor) -> Tensor:
    """Return which prompts are answered greedily: every other one."""
    return number % 2 == 0


def _corpus(
    flat: Tensor, lengths: Tensor, starts: Tensor, chosen: Tensor, device: torch.device
) -> Corpus:
    """Return the rows that `chosen`, bool [rows], selects, without those with an empty answer."""
    chosen = chosen & (lengths > starts)
    return Corpus(
        flat[chosen.repeat_interleave(lengths)].to(device), lengths[chosen], starts[chosen]
    )


def small(ids: Tensor, vocab_size: int) -> Tensor:
    """Return ids as uint16 where the vocabulary allows, int32 otherwise."""
    return ids.to(torch.uint16 if vocab_size <= 2**16 else torch.int32)


def write_tensors(tensors: dict[str, Tensor], path: Path, identity: str) -> None:
    """Write a safetensors file that records what it was made from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    save_tensors(tensors, unfinished, metadata={"identity": identity})
    os.replace(unfinished, path)


def read_tensors(path: Path, identity: str) -> dict[str, Tensor]:
    """Return a file's tensors. Raises CheckpointError if it was made from something else."""
    with safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get("identity") != identity:
            raise CheckpointError(
                f"{path}: made for another target or with other options: name a new --output-dir"
            )
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
