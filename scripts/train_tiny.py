"""Train the shipped default pair: a tiny Gemma-4 target and its EAGLE-3 draft head.

\b
    export PYTHONPATH=src
    python scripts/train_tiny.py --output-dir /tmp/tiny             # both: minutes on a GPU
    python scripts/train_tiny.py target --output-dir /tmp/tiny      # the target only
    python scripts/train_tiny.py head --output-dir /tmp/tiny        # a head for that target
    python scripts/train_tiny.py --output-dir /tmp/smoke --smoke    # a minute on a CPU

Writes OUTPUT_DIR/target (config, INT4 weights, tokenizer, chat template), OUTPUT_DIR/head (an
EAGLE-3 head in the layout of vLLM's speculators) and OUTPUT_DIR/training.json (what was run, and
how good it is).
"""

import math
from pathlib import Path

import click

SMOKE_DEFAULTS = {
    "stories": 1000,
    "problems": 4,
    "target_steps": 6,
    "target_batch_tokens": 1024,
    "head_steps": 4,
    "head_batch_tokens": 1024,
}


def use_smoke_defaults(context: click.Context, _: click.Parameter, smoke: bool) -> None:
    """Replaces the defaults of the sizes; what is given on the command line still wins."""
    if smoke:
        context.default_map = SMOKE_DEFAULTS


@click.command(help=__doc__, context_settings={"show_default": True})
@click.argument("part", type=click.Choice(["all", "target", "head"]), default="all")
@click.option("--output-dir", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--seed", default=0)
@click.option(
    "--smoke", is_flag=True, is_eager=True, expose_value=False, callback=use_smoke_defaults,
    help="A few steps on a few stories, to see that all of it runs.",
)  # fmt: skip
@click.option("--stories", default=600_000, help="Stories to train on.")
@click.option(
    "--problems", type=click.IntRange(min=1), default=512, help="Held-out problems to measure on."
)
@click.option("--target-steps", default=5300)
@click.option("--target-batch-tokens", default=32_768, help="Padding included.")
@click.option("--target-learning-rate", default=2e-3)
@click.option("--target-minutes", default=math.inf, help="Ends the schedule early if need be.")
@click.option("--head-steps", default=3300)
@click.option("--head-batch-tokens", default=32_768, help="Padding included.")
@click.option("--head-learning-rate", default=1.5e-3)
@click.option("--head-minutes", default=math.inf, help="Ends the schedule early if need be.")
def main(
    part: str,
    output_dir: Path,
    device: str,
    seed: int,
    stories: int,
    problems: int,
    target_steps: int,
    target_batch_tokens: int,
    target_learning_rate: float,
    target_minutes: float,
    head_steps: int,
    head_batch_tokens: int,
    head_learning_rate: float,
    head_minutes: float,
) -> None:
    # Imported here: the processes that tokenise import this file again, and need none of it.
    import torch

    from eagle_aot.lab.training.loop import Budget
    from eagle_aot.lab.training.tiny.pipeline import Run, run_head, run_target

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # TF32 where autocast does not apply; no effect on a CPU.
    torch.set_float32_matmul_precision("high")
    output_dir.mkdir(parents=True, exist_ok=True)
    run = Run(
        output_dir=output_dir,
        device=torch.device(device),
        seed=seed,
        stories=stories,
        problems=problems,
        target=Budget(
            steps=target_steps,
            tokens=target_batch_tokens,
            learning_rate=target_learning_rate,
            minutes=target_minutes,
        ),
        head=Budget(
            steps=head_steps,
            tokens=head_batch_tokens,
            learning_rate=head_learning_rate,
            minutes=head_minutes,
        ),
    )
    if part in ("all", "target"):
        run_target(run)
    if part in ("all", "head"):
        run_head(run)


if __name__ == "__main__":
    main()
