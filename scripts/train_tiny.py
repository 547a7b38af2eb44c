"""Train the shipped default pair: a tiny Gemma-4 target and its EAGLE-3 draft head.

\b
    python scripts/train_tiny.py --output-dir /tmp/tiny             # both: minutes on a GPU
    python scripts/train_tiny.py target --output-dir /tmp/tiny      # the target only
    python scripts/train_tiny.py head --output-dir /tmp/tiny        # a head for that target
    python scripts/train_tiny.py --output-dir /tmp/smoke --smoke    # a minute on a CPU

Writes OUTPUT_DIR/target (config, INT4 weights, tokenizer, chat template), OUTPUT_DIR/head (an
EAGLE-3 head in the layout of vLLM's speculators) and OUTPUT_DIR/training.json.
"""

import click
import torch

from eagle_aot.common.spec import spec_command
from eagle_aot.lab.training.loop import smoke_option
from eagle_aot.lab.training.tiny.pipeline import TinySpec, run_head, run_target

SMOKE_DEFAULTS = {
    "stories": 1000,
    "problems": 4,
    "target_steps": 6,
    "target_batch_tokens": 1024,
    "head_steps": 4,
    "head_batch_tokens": 1024,
}


@click.argument("part", type=click.Choice(("all", "target", "head")), default="all")
@smoke_option(SMOKE_DEFAULTS)
@spec_command(TinySpec)
def main(spec: TinySpec) -> None:
    torch.set_float32_matmul_precision("high")  # TF32 where autocast does not apply
    spec.output_dir.mkdir(parents=True, exist_ok=True)
    if spec.part in ("all", "target"):
        run_target(spec)
    if spec.part in ("all", "head"):
        run_head(spec)


main.help = __doc__
if __name__ == "__main__":
    main()
