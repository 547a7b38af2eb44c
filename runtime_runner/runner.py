"""An opened artifact that generates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle_aot.artifact import DRAFTERS, Constants, Manifest, tokenizer_files
from eagle_aot.common.errors import ArtifactError, PromptError, SettingError
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.runtime_runner.adaptive.backlog import (
    Backlog,
    LateDrafter,
    NoBacklog,
    RecordedBacklog,
)
from eagle_aot.runtime_runner.adaptive.calibrate import measure_costs
from eagle_aot.runtime_runner.adaptive.chain_length import AUTO_LENGTH, ChainLen, ChainLength
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule, ConstantSchedule, Schedule
from eagle_aot.runtime_runner.checks.step import check_shape, check_step
from eagle_aot.runtime_runner.drafters import kind_of
from eagle_aot.runtime_runner.executors import Executor, open_program
from eagle_aot.runtime_runner.generate import Limits, generate, prefill
from eagle_aot.runtime_runner.round import Drafter, Round, Running
from eagle_aot.runtime_runner.stats import Stats
from eagle_aot.runtime_runner.step import StepRows
from eagle_aot.runtime_runner.target import Forward, TargetMethods, no_moves

DEFAULT_MAX_NEW_TOKENS = 128
BACKLOG_ROWS = 128  # at most
LONGEST_CHOSEN = 7  # drafts, of a chain length that is chosen round by round


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One generation. `finish_reason` is stop, length or context; `text` is None without a
    tokenizer, `drafter` where nothing was to be drafted."""

    prompt_tokens: int
    token_ids: list[int]
    text: str | None
    finish_reason: str
    executor: str
    drafter: str | None
    stats: Stats

    def to_json(self) -> dict[str, Any]:
        """The fields of `eagle-run --json`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": len(self.token_ids),
            "token_ids": self.token_ids,
            "text": self.text,
            "finish_reason": self.finish_reason,
            **self.stats.to_json(),
            "executor": self.executor,
            "drafter": self.drafter,
        }


class Runner:
    """Greedy generation for one sequence at a time; the caches live in the executor."""

    def __init__(
        self, directory: Path, executor: Executor, constants: Constants, drafter: LateDrafter
    ) -> None:
        self.directory = directory
        self.executor = executor
        self.constants = constants
        self.target = TargetMethods(executor, constants)
        self.drafter = drafter
        self.running = Running([0], constants.tail, executor.device)
        self._rounds: dict[int, Round] = {}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded when text is first needed. Raises ArtifactError when there is none."""
        return Tokenizer(self.directory)

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        chain_len: ChainLen | None = None,
        speculate: bool = True,
        *,
        raw_prompt: bool = False,
        stop_ids: Iterable[int] = (),
        on_tokens: Callable[[list[int]], None] = lambda run: None,
    ) -> Result:
        """Continue a prompt, given as text (one user turn, unless `raw_prompt`) or as token ids.

        `chain_len` drafts per round, the artifact's default if None, or "auto" for as many as pay,
        round by round; `speculate=False` decodes plainly, with the same tokens as result.
        `stop_ids` are added to the artifact's own. `on_tokens` is handed every run of new tokens
        as it is decided. Raises PromptError for a prompt that does not fit and SettingError for an
        argument outside its range.
        """
        chain_len = self._chain_len(chain_len)
        if max_new_tokens < 1:
            raise SettingError(f"max_new_tokens {max_new_tokens}: must be at least 1")
        ids = self._ids(prompt, raw_prompt)
        self._check_prompt(ids)
        room = min(max_new_tokens, self.constants.max_seq_len - len(ids))
        stops = frozenset((*self.constants.eos_ids, *self._check_stop_ids(stop_ids)))
        schedule = self._schedule(chain_len if speculate and room > 1 else 0)
        output, stats = generate(schedule, ids, Limits(room=room, stop_ids=stops), on_tokens)
        return Result(
            prompt_tokens=len(ids),
            token_ids=output,
            text=self.tokenizer.decode(output) if tokenizer_files(self.directory) else None,
            finish_reason=finish_reason(output, stops, max_new_tokens),
            executor=self.executor.name,
            drafter=self.drafter.kind if speculate else None,
            stats=stats,
        )

    def verify(self, step: StepRows, moves: Tensor | None = None) -> Forward:
        """Run rows of your own making through the target, as `target_verify` takes them.

        Checked on the host first: raises SettingError as `check_step` does, before anything is
        stored. `moves` int64 [B, D], nothing where it is None.
        """
        check_step(step, self.constants)
        batch, tail = len(step.sequences), self.constants.tail
        if moves is None:
            moves = no_moves(batch, tail, self.executor.device)
        check_shape("moves", moves, (batch, tail))
        return self.target.verify(step, moves)

    def round(self, chain_len: int) -> Round:
        """The round of `chain_len` drafts, 0 for plain decoding; made, and recorded, once."""
        if chain_len not in self._rounds:
            self._rounds[chain_len] = self._make(chain_len, self.drafter if chain_len else None)
        return self._rounds[chain_len]

    @cached_property
    def adaptive_schedule(self) -> AdaptiveSchedule:
        """Rounds of every chain length and what chooses between them, which learns from text to
        text. What they cost is measured here, which takes about four seconds."""
        constants = self.constants
        longest = min(LONGEST_CHOSEN, constants.tail - 1)
        rows = min(BACKLOG_ROWS, constants.max_prefill_chunk, constants.max_seq_len // 2)
        backlog = self._backlog(rows)
        rounds = [self._make(0, backlog), *(self.round(k) for k in range(1, longest + 1))]
        self._prefill_something()
        positions = constants.min_prefill_chunk, constants.max_seq_len - constants.tail
        costs = measure_costs(rounds, backlog, positions)
        return AdaptiveSchedule(rounds, backlog, ChainLength(costs))

    def _backlog(self, rows: int) -> Backlog:
        recorded = self.executor.device.type == "cuda"
        kept = RecordedBacklog if recorded else Backlog
        needed = kept if DRAFTERS[self.drafter.kind] else NoBacklog
        return needed(self.drafter, rows, self.running)

    def _schedule(self, chain_len: ChainLen) -> Schedule:
        return (
            self.adaptive_schedule
            if chain_len == AUTO_LENGTH
            else ConstantSchedule(self.round(chain_len))
        )

    def _make(self, chain_len: int, drafter: Drafter | None) -> Round:
        """Recorded on a GPU. What is recorded starts from a state that exists and kernels that
        are loaded, and what it writes to the caches is overwritten."""
        round_ = Round(self.target, drafter, chain_len, self.running)
        if self.executor.device.type == "cuda":
            self._prefill_something()
            round_.play = self.executor.repeat(round_.step)
        return round_

    def _prefill_something(self) -> None:
        """In target and drafter, which gives both a state."""
        round_ = Round(self.target, self.drafter, 1, self.running)
        prefill(round_, [0] * self.constants.min_prefill_chunk, Stats(chain_len=0))

    def _ids(self, prompt: str | Sequence[int], raw: bool) -> list[int]:
        return self.tokenizer.encode(prompt, raw) if isinstance(prompt, str) else list(prompt)

    def _chain_len(self, chain_len: ChainLen | None) -> ChainLen:
        longest = self.constants.tail - 1
        if chain_len == AUTO_LENGTH:
            return AUTO_LENGTH
        chosen = self.constants.chain_len if chain_len is None else chain_len
        if not 1 <= chosen <= longest:
            raise SettingError(f"chain length {chosen}: this artifact takes 1 to {longest}")
        return chosen

    def _check_stop_ids(self, stop_ids: Iterable[int]) -> list[int]:
        stops = list(stop_ids)
        for stop in stops:
            if not 0 <= stop < self.constants.vocab_size:
                raise SettingError(
                    f"stop id {stop} is outside the vocabulary of {self.constants.vocab_size}"
                )
        return stops

    def _check_prompt(self, ids: list[int]) -> None:
        context, vocab = self.constants.max_seq_len, self.constants.vocab_size
        if not ids:
            raise PromptError("the prompt is empty")
        if not all(type(i) is int for i in ids):
            raise PromptError("prompt ids must be integers")
        if len(ids) >= context:
            raise PromptError(
                f"the prompt has {len(ids)} tokens and the context {context}: shorten the prompt "
                "or export with a larger --max-seq-len"
            )
        if not 0 <= min(ids) <= max(ids) < vocab:
            raise PromptError(f"prompt ids {min(ids)}..{max(ids)} leave the vocabulary of {vocab}")


def finish_reason(output: list[int], stop_ids: frozenset[int], max_new_tokens: int) -> str:
    """Why a generation ended: at a stop token, at its budget, or at the end of the context."""
    if output[-1] in stop_ids:
        return "stop"
    return "length" if len(output) == max_new_tokens else "context"


def load_artifact(
    path: str | Path,
    executor: str = "auto",
    *,
    cuda_graphs: bool = True,
    drafter: str | None = None,
) -> Runner:
    """Open an artifact directory for running.

    With `cuda_graphs`, an executor on a GPU records rounds and replays them. `drafter` is one of
    `DRAFTERS`, the artifact's own where it is None.

    Its files must match the manifest's hashes and its constants the manifest's. Raises
    ArtifactError for an artifact that is damaged, of another version or with a drafter that is not
    known here, SettingError for a drafter that needs what the artifact does not have, and
    UnsupportedError for an executor that does not fit it.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise ArtifactError(f"{directory}: no such artifact directory")
    manifest = Manifest.read(directory)
    manifest.verify(directory)
    make_drafter = kind_of(manifest, directory, drafter)
    opened = open_program(directory, manifest, executor, cuda_graphs=cuda_graphs)
    constants = Constants.from_methods(opened.constants())
    if constants.methods() != manifest.constants:
        raise ArtifactError(f"{directory}: the program's constants are not the manifest's")
    return Runner(directory, opened, constants, make_drafter(opened, constants, directory))
