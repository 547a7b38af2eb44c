"""A written head on prompts of a file, by their kinds."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from eagle_aot.common.prompts import is_ids
from eagle_aot.lab.prompts import ALL, kinds_and_prompts
from eagle_aot.lab.training.heads.answers.writer import answer_greedily
from eagle_aot.lab.training.heads.corpus import Corpus
from eagle_aot.lab.training.heads.evaluation import CHAIN_LENS, Score, evaluate_head
from eagle_aot.lab.training.heads.pipeline import environment, record, written_draft
from eagle_aot.lab.training.heads.settings import Run

WIDTH = 110


def run_evaluate(run: Run, prompts_jsonl: Path) -> None:
    """Prints a table and writes evaluation.json. Raises PromptError for a file without prompts."""
    draft, asked = written_draft(run), kinds_and_ids(run, prompts_jsonl)
    prompts = [ids for _, ids in asked]
    rows = answer_greedily(run.target, prompts, run.stop_ids, run.answering.max_new_tokens)
    by_kind: dict[str, list[tuple[list[int], int]]] = {}
    for (kind, _), row in zip(asked, rows, strict=True):
        by_kind.setdefault(kind, []).append(row)
    scores = {
        kind: evaluate_head(draft, run.target, Corpus.of_rows(some, run.device))
        for kind, some in by_kind.items()
    }
    scores[ALL] = Score.total(list(scores.values()))
    Console(width=WIDTH).print(table(scores))
    facts = {kind: score.summary() for kind, score in scores.items()}
    record(
        run.output_dir / "evaluation.json",
        {"prompts": prompts_jsonl.name, "kinds": facts, **environment(run.device)},
    )


def kinds_and_ids(run: Run, path: Path) -> list[tuple[str, list[int]]]:
    """What the lines of a file call `kind`, and their prompts as token ids."""
    return [
        (kind, prompt if is_ids(prompt) else run.tokenizer.encode(prompt))
        for kind, prompt in kinds_and_prompts(path, "prompts")
    ]


def table(scores: dict[str, Score]) -> Table:
    """A line for every kind."""
    shown = Table(box=None, pad_edge=False)
    headers = ("kind", *(f"tau, K = {k}" for k in CHAIN_LENS), "right by step")
    for header in headers:
        shown.add_column(header, justify="left" if header == "kind" else "right")
    for kind, score in scores.items():
        tau = (f"{score.tau[str(k)]:.2f}" for k in CHAIN_LENS)
        shown.add_row(kind, *tau, " ".join(f"{share:.3f}" for share in score.accuracy_by_step))
    return shown
