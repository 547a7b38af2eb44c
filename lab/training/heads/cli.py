"""`eagle-train`: trains a draft head for a target."""

import click
import torch

from eagle_aot.common.errors import SettingError
from eagle_aot.common.spec import spec_command
from eagle_aot.lab.training.heads.pipeline import run_answers, run_evaluate, run_head, run_prompts
from eagle_aot.lab.training.heads.run import Run, TrainSpec
from eagle_aot.lab.training.loop import smoke_option

SMOKE_DEFAULTS = {
    "prompts": 24,
    "answer_tokens": 200,
    "max_new_tokens": 12,
    "slots": 8,
    "held_out": 2,
    "draft_vocab_size": 64,
    "intermediate_size": 64,
    "selector_rank": 8,
    "steps": 4,
    "batch_tokens": 512,
    "save_every": 2,
}
PARTS = ("all", "prompts", "answers", "head", "evaluate")


@click.argument("part", type=click.Choice(PARTS), default="all")
@smoke_option(SMOKE_DEFAULTS)
@spec_command(TrainSpec)
def main(spec: TrainSpec) -> None:
    """Train an EAGLE-3, P-EAGLE or DFlash2 draft head for a target, on answers that the target
    itself writes.

    \b
        eagle-train --target-model smollm2-135m --output-dir run
        eagle-export --target-model smollm2-135m --draft-dir run/head --output-dir smollm2-trained

    The parts, by name or all of them: `prompts` makes prompts of many kinds, `answers` lets the
    target answer them, `head` trains, `evaluate` measures the written head on --eval-prompts-jsonl.
    The same command continues a run that was stopped. Writes OUTPUT_DIR/head and
    OUTPUT_DIR/training.json.
    """
    run = Run(spec)
    torch.set_float32_matmul_precision("high")  # TF32 where autocast does not apply
    if spec.part == "evaluate" and spec.eval_prompts_jsonl is None:
        raise SettingError("evaluate: name prompts with --eval-prompts-jsonl")
    spec.output_dir.mkdir(parents=True, exist_ok=True)
    if spec.part == "prompts":
        run_prompts(run)
    if spec.part in ("all", "answers"):
        run_answers(run)
    if spec.part in ("all", "head"):
        run_head(run)
    if spec.part in ("all", "evaluate") and spec.eval_prompts_jsonl is not None:
        run_evaluate(run, spec.eval_prompts_jsonl)
