"""From a target to a head on disk, in parts that can each be continued."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import is_ids
from eagle_aot.lab.bench.spec import new_console, table_of
from eagle_aot.lab.prompts import ALL, kinds_and_prompts
from eagle_aot.lab.training.heads.answers.shards import (
    AnswerShards,
    is_greedy,
    read_tensors,
    small,
    write_tensors,
)
from eagle_aot.lab.training.heads.answers.writer import (
    AnswerWriter,
    TrainingAnswer,
    TrainingPrompt,
    answer_greedily,
)
from eagle_aot.lab.training.heads.corpus import Corpus
from eagle_aot.lab.training.heads.draft import HeadDraft
from eagle_aot.lab.training.heads.evaluation import CHAIN_LENS, HeadScore, evaluate_head
from eagle_aot.lab.training.heads.head_checkpoint import Verifier, read_head, save_head
from eagle_aot.lab.training.heads.kinds import KINDS
from eagle_aot.lab.training.heads.prompts.collect import PromptSet, collect_prompts
from eagle_aot.lab.training.heads.run import Run
from eagle_aot.lab.training.heads.train import train_head
from eagle_aot.lab.training.loop import StateFile, environment, seed_everything

TEXTS_PER_SHARD = 8192
SAMPLE = 32  # held-out texts of a line of the report


def run_prompts(run: Run) -> PromptSet:
    """Return the prompts, in an order that mixes their kinds; make them where none exist."""
    path = run.spec.output_dir / "prompts.safetensors"
    if not path.exists():
        rows = collect_prompts(run)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(run.spec.seed))
        rows = [rows[i] for i in order.tolist()]
        flat = torch.tensor([i for row in rows for i in row])
        tensors = {
            "flat": small(flat, run.target.facts.vocab_size),
            "lengths": torch.tensor([len(row) for row in rows], dtype=torch.int64),
        }
        write_tensors(tensors, path, run.prompts_identity)
    tensors = read_tensors(path, run.prompts_identity)
    return PromptSet.of_lengths(tensors["flat"], tensors["lengths"])


def run_answers(run: Run) -> AnswerShards:
    """Let the target answer prompts until there are enough answers."""
    if run.compile:
        run.target.compile()
    prompts, spec = run_prompts(run), run.spec
    shards = answer_shards(run)
    answered = shards.numbers
    writer = AnswerWriter(
        run.target,
        slots=min(spec.slots, len(prompts)),
        longest_prompt=spec.longest_prompt,
        max_new_tokens=spec.max_new_tokens,
        stop_ids=run.stop_ids,
        seed=run.spec.seed + len(answered),
    )
    greedy = is_greedy(torch.arange(len(prompts))).tolist()
    left = (
        TrainingPrompt(number, prompts.ids(number), 0.0 if greedy[number] else spec.temperature)
        for number in range(len(prompts))
        if number not in answered
    )
    _write_shards(run, shards, writer.write(left))
    return shards


def answer_shards(run: Run) -> AnswerShards:
    """Return the answers that exist."""
    directory = run.spec.output_dir / "answers"
    return AnswerShards(directory, run.target.facts.vocab_size, run.answers_identity)


def _minutes(started: float) -> float:
    return (time.monotonic() - started) / 60


def _write_shards(run: Run, shards: AnswerShards, written: Iterator[list[TrainingAnswer]]) -> None:
    console, started = Console(), time.monotonic()
    tokens_before = tokens = shards.answer_tokens
    waiting: list[TrainingAnswer] = []
    while tokens < run.spec.answer_tokens and _minutes(started) < run.spec.answer_minutes:
        some = next(written, None)
        waiting += some or []
        tokens += sum(len(answer.ids) for answer in some or [])
        if len(waiting) >= TEXTS_PER_SHARD or (some is None and waiting):
            shards.add(waiting)
            waiting = []
            seconds = time.monotonic() - started
            console.print(
                f"answers {tokens:>12,}/{run.spec.answer_tokens:,} tokens  "
                f"{(tokens - tokens_before) / seconds:>9,.0f} tok/s  {seconds:6.1f} s",
                highlight=console.is_terminal,
                soft_wrap=True,
            )
        if some is None:
            break
    if waiting:
        shards.add(waiting)


def run_head(run: Run) -> None:
    """Train a head on the answers, write it, and measure what was written."""
    shards, started = answer_shards(run), time.monotonic()
    corpus, held_out = _corpora(run, shards)
    seed_everything(run.spec.seed)
    kind = KINDS[run.spec.drafter]
    draft = kind.fresh(run, corpus)
    _save(run, draft)  # so that an unwritable directory fails before hours of training
    sample = Corpus.of_rows(_rows(held_out, SAMPLE), run.device)

    def accuracy() -> str:
        shares = evaluate_head(draft, run.target, sample, CHAIN_LENS[-1:]).accuracy_by_step
        return "  right " + " ".join(f"{share:.2f}" for share in shares)

    progress = train_head(
        draft,
        run.target,
        corpus,
        run.budget,
        run.spec.seed,
        compiled=run.compile,
        state_file=StateFile(
            path=run.spec.output_dir / "head.state",
            every=run.spec.save_every,
            identity=run.head_identity(len(corpus.lengths)),
        ),
        on_report=accuracy,
    )
    _save(run, draft)
    scores = {
        "trained": evaluate_head(draft, run.target, held_out).summary(),
        "written": evaluate_head(written_draft(run), run.target, held_out).summary(),
    }
    record(
        run.spec.output_dir / "training.json",
        {
            "target": {"name": run.target_model, "sha256": run.target_sha256},
            **progress.summary(),
            "seconds_in_all": round(time.monotonic() - started, 1),
            "texts": len(corpus.lengths),
            "answer_tokens": shards.answer_tokens,
            "held_out": scores,
            "head": {
                "drafter": run.spec.drafter,
                **kind.geometry(draft),
                "tap_layers": draft.tap_layers,
                "format": run.spec.head_format,
            },
            "bytes": sum(path.stat().st_size for path in run.head_dir.iterdir()),
            "seed": run.spec.seed,
            "batch_tokens": run.budget.tokens,
            "learning_rate": run.budget.learning_rate,
            "minutes": None if math.isinf(run.budget.minutes) else run.budget.minutes,
            **environment(run.device),
        },
    )


def _corpora(run: Run, shards: AnswerShards) -> tuple[Corpus, Corpus]:
    corpus, held_out = shards.corpora(run.spec.held_out, run.device)
    if not len(corpus.lengths) or not len(held_out.lengths):
        raise SettingError(
            f"{shards.directory}: {len(corpus.lengths)} texts to train on and "
            f"{len(held_out.lengths)} to measure on: run the part `answers` first"
        )
    return corpus, held_out


def written_draft(run: Run) -> HeadDraft:
    """Return the head as it is on disk."""
    return read_head(run.head_dir, run.target.facts).to(run.device)


def _save(run: Run, draft: HeadDraft) -> None:
    save_head(
        draft,
        Verifier.read(run.target_dir, run.target_model),
        run.spec.chain_len,
        run.head_dir,
        head_format=run.spec.head_format,
        with_embedding=run.spec.with_embedding,
    )


def _rows(corpus: Corpus, count: int) -> list[tuple[list[int], int]]:
    batch = corpus.batch(torch.arange(min(count, len(corpus.lengths))))
    lengths, starts = corpus.lengths.tolist(), corpus.answer_starts.tolist()
    rows = batch.tokens.tolist()
    return [(row[: lengths[i]], starts[i]) for i, row in enumerate(rows)]


def run_evaluate(run: Run, prompts_jsonl: Path) -> None:
    """Print a table and write evaluation.json. Raises PromptError for a file without prompts."""
    draft, prompts = written_draft(run), kinds_and_ids(run, prompts_jsonl)
    ids_only = [ids for _, ids in prompts]
    rows = answer_greedily(run.target, ids_only, run.stop_ids, run.spec.max_new_tokens)
    by_kind: dict[str, list[tuple[list[int], int]]] = {}
    for (kind, _), row in zip(prompts, rows, strict=True):
        by_kind.setdefault(kind, []).append(row)
    scores = {
        kind: evaluate_head(draft, run.target, Corpus.of_rows(some, run.device))
        for kind, some in by_kind.items()
    }
    scores[ALL] = HeadScore.total(list(scores.values()))
    new_console().print(table(scores))
    facts = {kind: score.summary() for kind, score in scores.items()}
    record(
        run.spec.output_dir / "evaluation.json",
        {"prompts": prompts_jsonl.name, "kinds": facts, **environment(run.device)},
    )


def kinds_and_ids(run: Run, path: Path) -> list[tuple[str, list[int]]]:
    """Return the kind of each line, and its prompt as token ids."""
    return [
        (kind, prompt if is_ids(prompt) else run.tokenizer.encode(prompt))
        for kind, prompt in kinds_and_prompts(path, "prompts")
    ]


def table(scores: dict[str, HeadScore]) -> Table:
    """Return a row for every kind."""
    shown = table_of("kind", *(f"tau, K = {k}" for k in CHAIN_LENS), "right by step")
    for kind, score in scores.items():
        tau = (f"{score.tau[str(k)]:.2f}" for k in CHAIN_LENS)
        shown.add_row(kind, *tau, " ".join(f"{share:.3f}" for share in score.accuracy_by_step))
    return shown


def record(path: Path, facts: dict[str, Any]) -> None:
    """Write facts as JSON, and print them."""
    text = json.dumps(facts, indent=2)
    path.write_text(text + "\n")
    print(text)
