"""Train an EAGLE-3 or P-EAGLE draft head for a target, on answers that the target itself writes.

\b
    export PYTHONPATH=src
    scripts/get_smollm2 smollm2
    python scripts/train_head.py --target-model smollm2-135m --target-dir smollm2 --output-dir run
    eagle-export --target-model smollm2-135m --target-dir smollm2 --draft-dir run/head \\
        --output-dir smollm2-xnnpack

The parts, by name or all of them: `prompts` makes prompts of many kinds, `answers` lets the target
answer them, `head` trains, `evaluate` measures the written head on --eval-prompts-jsonl. A run that
was stopped goes on where it was when the same command is given again. Writes OUTPUT_DIR/head and
OUTPUT_DIR/training.json (what was run, and how good it is).
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from eagle_aot.artifact import EAGLE3, P_EAGLE
from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError

SMOKE_DEFAULTS = {
    "prompts": 24,
    "answer_tokens": 200,
    "max_new_tokens": 12,
    "slots": 8,
    "held_out": 2,
    "draft_vocab_size": 64,
    "intermediate_size": 64,
    "steps": 4,
    "batch_tokens": 512,
    "save_every": 2,
}
Option = Callable[[Callable[..., Any]], Callable[..., Any]]
PARTS = ("prompts", "answers", "head", "evaluate")


def use_smoke_defaults(context: click.Context, _: click.Parameter, smoke: bool) -> None:
    """Replaces the defaults of the sizes; what is given on the command line still wins."""
    if smoke:
        context.default_map = SMOKE_DEFAULTS


def count(name: str, default: int, text: str, least: int = 1) -> Option:
    """An option that takes a whole number."""
    kind = click.IntRange(min=least)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def number(name: str, default: float, text: str) -> Option:
    """An option that takes a number above zero."""
    kind = click.FloatRange(min=0, min_open=True)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


@eagle_command
@click.argument("part", type=click.Choice(["all", *PARTS]), default="all")
@click.option("--target-model", default="auto", show_default=True, help="As eagle-export takes it.")
@click.option("--target-dir", type=click.Path(path_type=Path), help="Its directory or GGUF file.")
@click.option("--output-dir", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto",
              show_default=True)  # fmt: skip
@click.option("--seed", default=0, show_default=True)
@click.option("--smoke", is_flag=True, is_eager=True, expose_value=False,
              callback=use_smoke_defaults,
              help="Tiny sizes, to see that all of it runs.")  # fmt: skip
@count("--prompts", 330_000, "Distinct prompts that templates make.", 0)
@count("--own-prompts", 0, "Users' turns that the target itself writes.", 0)
@click.option("--prompts-jsonl", type=click.Path(path_type=Path), help="Prompts of your own.")
@count("--longest-prompt", 128, "Tokens; longer prompts are left out.")
@count("--answer-tokens", 30_000_000, "Ends the answers.")
@number("--answer-minutes", math.inf, "Ends the answers early if need be.")
@count("--max-new-tokens", 192, "Of an answer.")
@number("--temperature", 0.8, "Of every other answer; all others are greedy.")
@count("--slots", 2048, "Answers written at once: as memory allows.")
@count("--held-out", 256, "Greedy answers to measure on, never trained on.")
@click.option("--drafter", type=click.Choice([EAGLE3, P_EAGLE]), default=EAGLE3,
              show_default=True, help="What kind of head.")  # fmt: skip
@count("--draft-vocab-size", 8192, "The answers' most frequent tokens.")
@count("--intermediate-size", 1536, "Of the head's MLP.")
@click.option("--layers", type=click.IntRange(min=1),
              help="Of the head; default: 1, of P-EAGLE 4.")  # fmt: skip
@click.option("--tap-layers", help="Boundaries a,b,c; default: 2, n // 2 and n - 3.")
@count("--steps", 2600, "Of training.")
@count("--batch-tokens", 32_768, "Padding included.")
@number("--learning-rate", 1e-3, "The highest.")
@number("--head-minutes", math.inf, "Ends the schedule early if need be.")
@count("--save-every", 250, "Steps between checkpoints of the training.")
@count("--chain-len", 4, "Drafts a round that the head's files propose.")
@click.option("--head-format", type=click.Choice(["bf16", "int8", "int4"]), default="int8",
              show_default=True, help="How the head's linears are stored.")  # fmt: skip
@click.option("--with-embedding", is_flag=True, help="Store the target's embedding in the head.")
@click.option("--compile/--no-compile", "compiled", default=None,
              help="Fuse what surrounds matrix products; default: on a GPU.")  # fmt: skip
@click.option("--eval-prompts-jsonl", type=click.Path(path_type=Path),
              help="Prompts, each with its `kind`, to measure the written head on.")  # fmt: skip
def main(
    part: str,
    target_model: str,
    target_dir: Path | None,
    output_dir: Path,
    device: str,
    seed: int,
    prompts: int,
    own_prompts: int,
    prompts_jsonl: Path | None,
    longest_prompt: int,
    answer_tokens: int,
    answer_minutes: float,
    max_new_tokens: int,
    temperature: float,
    slots: int,
    held_out: int,
    drafter: str,
    draft_vocab_size: int,
    intermediate_size: int,
    layers: int | None,
    tap_layers: str | None,
    steps: int,
    batch_tokens: int,
    learning_rate: float,
    head_minutes: float,
    save_every: int,
    chain_len: int,
    head_format: str,
    with_embedding: bool,
    compiled: bool | None,
    eval_prompts_jsonl: Path | None,
) -> None:
    # Imported here: the processes that tokenise import this file again, and need none of it.
    import torch

    from eagle_aot.export.drafters.taps import parse_tap_layers
    from eagle_aot.lab.training.heads import judge, pipeline
    from eagle_aot.lab.training.heads.draft import HeadSizes
    from eagle_aot.lab.training.heads.learned_mask import LAYERS
    from eagle_aot.lab.training.heads.settings import Answering, Prompting, Run
    from eagle_aot.lab.training.loop import Budget

    place = torch.device(chosen_device(device))
    # TF32 where autocast does not apply; no effect on a CPU.
    torch.set_float32_matmul_precision("high")
    run = Run(
        output_dir=output_dir,
        target_model=target_model,
        target_dir=found_target(target_model, target_dir),
        device=place,
        seed=seed,
        prompting=Prompting(
            count=prompts, own=own_prompts, longest=longest_prompt, jsonl=prompts_jsonl
        ),
        answering=Answering(
            tokens=answer_tokens,
            minutes=answer_minutes,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            slots=slots,
        ),
        held_out=held_out,
        drafter=drafter,
        sizes=HeadSizes(
            draft_vocab_size=draft_vocab_size,
            intermediate_size=intermediate_size,
            num_layers=layers or (LAYERS if drafter == P_EAGLE else 1),
            tap_layers=parse_tap_layers(tap_layers),
        ),
        budget=Budget(
            steps=steps, tokens=batch_tokens, learning_rate=learning_rate, minutes=head_minutes
        ),
        save_every=save_every,
        chain_len=chain_len,
        head_format=head_format,
        with_embedding=with_embedding,
        compiled=place.type == "cuda" if compiled is None else compiled,
    )
    if part == "evaluate" and eval_prompts_jsonl is None:
        raise SettingError("evaluate: name prompts with --eval-prompts-jsonl")
    output_dir.mkdir(parents=True, exist_ok=True)
    if part == "prompts":
        pipeline.run_prompts(run)
    if part in ("all", "answers"):
        pipeline.run_answers(run)
    if part in ("all", "head"):
        pipeline.run_head(run)
    if part in ("all", "evaluate") and eval_prompts_jsonl is not None:
        judge.run_evaluate(run, eval_prompts_jsonl)


def chosen_device(name: str) -> str:
    """The device that is meant. Raises SettingError where there is no GPU to use."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingError("--device cuda: this machine has no GPU that torch can use")
    return name


def found_target(name: str, directory: Path | None) -> Path:
    """Where the target lies. Raises SettingError where nobody says, or no target does."""
    from eagle_aot.targets import get_target
    from eagle_aot.targets.checkpoint_path import is_checkpoint, why_no_checkpoint

    found = directory or get_target(name).target_dir
    if found is None:
        raise SettingError(f"--target-dir is needed: {name} is read from a directory")
    if not is_checkpoint(found):
        raise SettingError(f"--target-dir {why_no_checkpoint(found)}")
    return found


if __name__ == "__main__":
    main()
