"""Measures a written head on prompts of a file, by kind."""

from pathlib import Path

from rich.table import Table

from eagle_aot.common.prompts import is_ids
from eagle_aot.lab.bench.spec import new_console, table_of
from eagle_aot.lab.prompts import ALL, kinds_and_prompts
from eagle_aot.lab.training.heads.answers.writer import answer_greedily
from eagle_aot.lab.training.heads.corpus import Corpus
from eagle_aot.lab.training.heads.evaluation import CHAIN_LENS, Score, evaluate_head
from eagle_aot.lab.training.heads.pipeline import record, written_draft
from eagle_aot.lab.training.heads.run import Run
from eagle_aot.lab.training.loop import environment


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
    scores[ALL] = Score.total(list(scores.values()))
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


def table(scores: dict[str, Score]) -> Table:
    """Return a row for every kind."""
    shown = table_of("kind", *(f"tau, K = {k}" for k in CHAIN_LENS), "right by step")
    for kind, score in scores.items():
        tau = (f"{score.tau[str(k)]:.2f}" for k in CHAIN_LENS)
        shown.add_row(kind, *tau, " ".join(f"{share:.3f}" for share in score.accuracy_by_step))
    return shown
