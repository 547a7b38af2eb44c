"""Show what `eagle-export --self-test` says of the shipped head, and of heads with every fault.

\b
    PYTHONPATH=tests python -m faults.head_table
"""

import itertools
import json
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import click

from faults.heads import FAULTS, Fault, no_fault, write_faulty_head
from tiny_pair.stories import stories

SEED = 5  # any; the split is by the question's text
SOUND = Fault(name="the shipped head", edit=no_fault, found=None)
COMMAND = ["eagle-export", "--target-model", "gemma4-tiny", "--backend", "xnnpack", "--self-test"]


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--problems", type=click.IntRange(min=1), default=32,
              help="Held-out ones, for faults that the built-in prompts miss.")  # fmt: skip
def main(problems: int) -> None:
    versions = ", ".join(f"{name} {version(name)}" for name in ("eagle-aot", "torch"))
    click.echo(f"{versions}\n{' '.join(COMMAND)} --draft-dir HEAD")
    click.echo(f"and with --self-test-prompts {problems}-problems.jsonl where that is said")
    with tempfile.TemporaryDirectory() as place:
        prompts = Path(place) / "problems.jsonl"
        questions = (story.question for story in itertools.islice(stories(SEED, "test"), problems))
        prompts.write_text("".join(json.dumps({"prompt": q}) + "\n" for q in questions))
        for number, fault in enumerate((SOUND, *FAULTS)):
            head = write_faulty_head(fault, Path(place) / str(number))
            show(fault.name, head, None)
            if fault.slight or fault is SOUND:
                show(f"{fault.name}, {problems} problems", head, prompts)


def show(title: str, head: Path, prompts: Path | None) -> None:
    """What one run prints, and how it exits."""
    given = [] if prompts is None else ["--self-test-prompts", str(prompts)]
    command = [*COMMAND, "--draft-dir", str(head), *given]
    done = subprocess.run(command, capture_output=True, text=True)
    click.echo(f"\n=== {title}\n{done.stderr.strip()}\nexit code {done.returncode}")


if __name__ == "__main__":
    main()
