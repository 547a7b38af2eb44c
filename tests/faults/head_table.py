"""Show what `eagle-inspect draft --self-test` reports of a shipped head and of faulty heads.

\b
    PYTHONPATH=tests python -m faults.head_table
    PYTHONPATH=tests python -m faults.head_table --target-model smollm2-135m --target-dir smollm2
"""

import itertools
import json
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import click

from eagle_aot.export import load_draft
from eagle_aot.lab.training.heads.head_checkpoint import Verifier, save_head
from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.targets import get_target, load_target
from faults.heads import Fault, faults_of, no_fault, write_faulty_head

SEED = 5  # any; the split is by the question's text
PROBLEMS = 32
SOUND = Fault(name="the shipped head", edit=no_fault, found=None)


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--target-model", default="gemma4-tiny", help="One whose head ships.")
@click.option("--target-dir", type=click.Path(path_type=Path), help="Where none ships.")
@click.option("--prompts-jsonl", type=click.Path(path_type=Path),
              help="For what the built-in ones miss.  [default: 32 problems]")  # fmt: skip
def main(target_model: str, target_dir: Path | None, prompts_jsonl: Path | None) -> None:
    options = ["--target-model", target_model, "--backend", "xnnpack", "--self-test"]
    options += ["--target-dir", str(target_dir)] if target_dir else []
    versions = ", ".join(f"{name} {version(name)}" for name in ("eagle-aot", "torch"))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prompts = prompts_jsonl or write_problems(place / f"{PROBLEMS}-problems.jsonl")
        click.echo(f"{versions}\neagle-inspect draft HEAD {' '.join(options)}")
        click.echo(f"and with --self-test-prompts {prompts.name} where that is said")
        head, boundaries = dense_head(target_model, target_dir, place / "dense")
        for number, fault in enumerate((SOUND, *faults_of(*boundaries))):
            directory = write_faulty_head(fault, place / str(number), head)
            command = ["eagle-inspect", "draft", str(directory), *options]
            show(fault.name, command)
            if fault.slight or fault is SOUND:
                with_prompts = [*command, "--self-test-prompts", str(prompts)]
                show(f"{fault.name}, {prompts.name}", with_prompts)


def write_problems(place: Path) -> Path:
    """Held-out ones of the tiny pair."""
    questions = (story.question for story in itertools.islice(stories(SEED, "test"), PROBLEMS))
    place.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in questions))
    return place


def dense_head(target_model: str, target_dir: Path | None, place: Path) -> tuple[Path, list[int]]:
    """The head that ships for a target, its linears dense, and its taps."""
    spec = get_target(target_model)
    checkpoint = target_dir or spec.target_dir
    if spec.draft_dir is None or checkpoint is None:
        raise click.UsageError(f"{target_model}: no head ships for it, or --target-dir is missing")
    draft = load_draft(spec.draft_dir, load_target(checkpoint, 256), 256)
    save_head(draft, Verifier.read(checkpoint, target_model), 4, place, with_embedding=False)
    return place, list(draft.config.tap_layers)


def show(title: str, command: list[str]) -> None:
    """What one run prints, and how it exits."""
    done = subprocess.run(command, capture_output=True, text=True)
    click.echo(f"\n=== {title}\n{done.stderr.strip()}\nexit code {done.returncode}")


if __name__ == "__main__":
    main()
