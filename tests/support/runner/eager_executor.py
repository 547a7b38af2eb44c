"""A pair's eager methods, with the interface of the runner's executors."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_PREFILL, EAGLE3, tokenizer_files
from eagle_aot.export import Pair
from eagle_aot.export.drafters.eagle3.methods import DraftPrefillMethod
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.methods import method_specs
from eagle_aot.export.publish.describe import describe_constants, write_draft_ids
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.round import Drafter
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.drafters import read_draft_ids
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.program.cache_pages import CachePages
from eagle_aot.runtime_runner.program.executor import Part
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from eagle_aot.targets import TARGETS


class EagerExecutor:
    """Runs the methods without exporting them, and counts the calls. `artifact` are an artifact's
    constants."""

    name = "eager"
    records = False
    pages: CachePages | None = None
    device = torch.device("cpu")

    def __init__(self, pair: Pair, chain_len: int = 4, eos_ids: tuple[int, ...] = ()) -> None:
        lengths = method_lengths(96, 97, 0, pair.target.sequences)
        self.artifact = describe_constants(pair, lengths, chain_len, eos_ids)
        self.methods = {name: spec.module for name, spec in method_specs(pair, lengths).items()}
        if pair.draft.kind == EAGLE3:
            self.methods[DRAFT_PREFILL] = DraftPrefillMethod(pair)
        self.calls: dict[str, int] = {}

    def constants(self) -> Mapping[str, Sequence[Any]]:
        return {}

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.calls[method] = self.calls.get(method, 0) + 1
        with torch.no_grad():
            outputs: Tensor | tuple[Tensor, ...] = self.methods[method](*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else outputs

    def repeat(self, step: Callable[[], Part]) -> Callable[[], Part]:
        return step


def eager_runner(pair: Pair, directory: Path) -> Runner:
    """Run the shipped pair, or one with other taps or caches, without an export. `directory` gets
    the files that a runner reads."""
    target_dir = TARGETS["gemma4-tiny"].target_dir
    assert target_dir is not None
    write_draft_ids(pair.draft, directory)
    for path in tokenizer_files(target_dir):
        shutil.copyfile(path, directory / path.name)
    executor = EagerExecutor(pair, chain_len=7, eos_ids=(1, 4))
    drafter = Eagle3Drafter(executor, executor.artifact, read_draft_ids(directory, "cpu"))
    return Runner(directory, executor, executor.artifact, drafter)


def prefilled(
    executor: EagerExecutor,
    drafter: Drafter,
    text: Sequence[int],
    sequence: Tensor | None = None,
    sampler: Sampler | None = None,
) -> Tensor:
    """Run a prompt for a drafter, in the first or another sequence int64 [1], and return the token
    after it, int64 [1, 1]."""
    target = TargetMethods(executor, executor.artifact)
    first = torch.zeros(1, dtype=torch.int64) if sequence is None else sequence
    run = Prefill(target, drafter, text, first, sampler=sampler)
    while run.left:
        token = run.run_chunk()
    return token
