"""Answers on disk: a file for every so many, so that an interrupted run goes on where it was."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle_aot.common.errors import CheckpointError
from eagle_aot.lab.training.heads.answers.writer import Written
from eagle_aot.lab.training.heads.corpus import Corpus


class AnswerShards:
    """A directory of such files, all made from what `identity` says.

    Of every text a file has the whole row of ids (prompt and answer), its length, where the answer
    starts, and the prompt's number.
    """

    def __init__(self, directory: Path, vocab_size: int, identity: str) -> None:
        """Reads what is there. Raises CheckpointError for files of another run."""
        self.directory, self.vocab_size, self.identity = directory, vocab_size, identity
        self._parts = [self._read(path) for path in sorted(directory.glob("*.safetensors"))]

    @property
    def numbers(self) -> set[int]:
        """Of all prompts that have been answered."""
        return {number for part in self._parts for number in part["numbers"].tolist()}

    @property
    def answer_tokens(self) -> int:
        """In all files."""
        return sum(int((part["lengths"] - part["starts"]).sum()) for part in self._parts)

    def add(self, written: Sequence[Written]) -> None:
        """One more file."""
        rows = [[*one.asked.ids, *one.answer] for one in written]
        part = {
            "flat": small(torch.tensor([i for row in rows for i in row]), self.vocab_size),
            "lengths": torch.tensor([len(row) for row in rows], dtype=torch.int32),
            "starts": torch.tensor([len(one.asked.ids) for one in written], dtype=torch.int32),
            "numbers": torch.tensor([one.asked.number for one in written], dtype=torch.int32),
        }
        path = self.directory / f"{len(self._parts):05}.safetensors"
        write_tensors(part, path, self.identity)
        self._parts.append(part)

    def corpora(self, held_out: int, device: torch.device) -> tuple[Corpus, Corpus]:
        """The texts to train on, and those of the first `held_out` greedy prompts."""
        lengths, starts, numbers = (self._joined(name) for name in ("lengths", "starts", "numbers"))
        flat = self._joined("flat")
        kept = (numbers < 2 * held_out) & is_greedy(numbers)
        return (
            _corpus(flat, lengths, starts, ~kept, device),
            _corpus(flat, lengths, starts, kept, device),
        )

    def _joined(self, name: str) -> Tensor:
        wide = torch.int32 if name == "flat" else torch.int64
        none = torch.empty(0, dtype=wide)
        return torch.cat([none, *(part[name].to(wide) for part in self._parts)])

    def _read(self, path: Path) -> dict[str, Tensor]:
        return read_tensors(path, self.identity)


def is_greedy(number: Tensor) -> Tensor:
    """Which prompts are answered greedily: every other one."""
    return number % 2 == 0


def _corpus(
    flat: Tensor, lengths: Tensor, starts: Tensor, chosen: Tensor, device: torch.device
) -> Corpus:
    """Those rows that are chosen, bool [rows]; an empty answer teaches nothing."""
    chosen = chosen & (lengths > starts)
    return Corpus(
        flat[chosen.repeat_interleave(lengths)].to(device), lengths[chosen], starts[chosen]
    )


def small(ids: Tensor, vocab_size: int) -> Tensor:
    """Ids as uint16 where the vocabulary allows, int32 otherwise."""
    return ids.to(torch.uint16 if vocab_size <= 2**16 else torch.int32)


def write_tensors(tensors: dict[str, Tensor], path: Path, identity: str) -> None:
    """Write a safetensors file that says what it was made from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    save_file(tensors, unfinished, metadata={"identity": identity})
    os.replace(unfinished, path)


def read_tensors(path: Path, identity: str) -> dict[str, Tensor]:
    """What was written. Raises CheckpointError where it was made from something else."""
    with safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get("identity") != identity:
            raise CheckpointError(
                f"{path}: made for another target or with other options: name a new --output-dir"
            )
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
