"""A written head on prompts of a file, by their kinds."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import read_prompts
from head_training.answers.writer import answer_greedily
from head_training.corpus import Corpus
from head_training.evaluation import CHAIN_LENS, Score, evaluate_head
from head_training.pipeline import environment, record, written_draft
from head_training.settings import Run

ALL = "all"
WIDTH = 110


def run_evaluate(run: Run, prompts_jsonl: Path) -> None:
    """Prints a table and writes evaluation.json. Raises PromptError for a file without prompts."""
    draft, scores = written_draft(run), {}
    for kind, prompts in prompts_by_kind(run, prompts_jsonl).items():
        rows = answer_greedily(run.target, prompts, run.stop_ids, run.answering.max_new_tokens)
        corpus = Corpus.of_rows(rows, run.device)
        scores[kind] = evaluate_head(draft, run.target, corpus)
    scores[ALL] = Score.total(list(scores.values()))
    Console(width=WIDTH).print(table(scores))
    facts = {kind: score.summary() for kind, score in scores.items()}
    record(
        run.output_dir / "evaluation.json",
        {"prompts": prompts_jsonl.name, "kinds": facts, **environment(run.device)},
    )


def prompts_by_kind(run: Run, path: Path) -> dict[str, list[list[int]]]:
    """Token ids of the prompts in a file, by what their lines call `kind`."""
    prompts = read_prompts(None, None, path)
    lines = [line for line in path.read_text("utf-8-sig").split("\n") if line.strip()]
    found: dict[str, list[list[int]]] = {}
    for prompt, line in zip(prompts, lines, strict=True):
        kind = json.loads(line).get("kind", "prompts")
        if not isinstance(kind, str) or kind == ALL:
            raise PromptError(f"{path}: kind {kind!r}: expected a name other than {ALL!r}")
        ids = run.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        found.setdefault(kind, []).append(ids)
    return found


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
