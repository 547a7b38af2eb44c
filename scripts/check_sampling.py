"""Is sampling right, and does speculation change a token of it?

\b
    python scripts/check_sampling.py --draws 1000000
    python scripts/write_prompts.py prompts.jsonl
    python scripts/check_sampling.py --artifact gemma4-tiny-xnnpack --prompts prompts.jsonl

Without an artifact, draws from a vocabulary that can be counted, against softmax in float64. With
one, texts of its prompts: plain, in chains, in trees, side by side with random arrivals, by prompt
lookup and in another process.
"""

import sys
from pathlib import Path

import click

from eagle_aot.common.command import eagle_command
from eagle_aot.common.prompts import read_prompts
from eagle_aot.lab.checks.sampling.distribution import SAMPLINGS, drawn
from eagle_aot.lab.checks.sampling.texts import asked_of, by_lookup, elsewhere, one_by_one, together
from eagle_aot.lab.options import drafter_option
from eagle_aot.lab.prompts import spread
from eagle_aot.runtime_runner import load_artifact

POSITIONS = 10_000  # that draws of one seed are of


@eagle_command
@click.option("--draws", type=click.IntRange(min=POSITIONS), default=POSITIONS * 10,
              show_default=True, help="Of each kind of sampling.")  # fmt: skip
@click.option("--artifact", type=click.Path(path_type=Path), help="What texts are made with.")
@click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE.jsonl")
@click.option("--count", type=click.IntRange(min=1), default=300, show_default=True,
              help="Prompts.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True,
              help="Of each prompt.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=48, show_default=True)
@drafter_option
def main(
    draws: int,
    artifact: Path | None,
    prompts: Path | None,
    count: int,
    seeds: int,
    max_new_tokens: int,
    drafter: str | None,
) -> None:
    """Print what was found; exits with 1 where draws do not fit, or a text differs."""
    if artifact is None:
        sys.exit(0 if all(check_draws(draws)) else 1)
    if prompts is None:
        raise click.UsageError("--artifact goes with --prompts")
    sys.exit(1 if check_texts(artifact, prompts, count, seeds, max_new_tokens, drafter) else 0)


def check_draws(count: int) -> list[bool]:
    """Whether those of each kind of sampling fit."""
    found = []
    for name, sampling in SAMPLINGS.items():
        one = drawn(name, sampling, range(count // POSITIONS), POSITIONS)
        click.echo(str(one))
        found.append(one.fits)
    return found


def check_texts(
    artifact: Path, path: Path, count: int, seeds: int, longest: int, drafter: str | None
) -> int:
    """How many differ."""
    runner = load_artifact(artifact, drafter=drafter)
    prompts = spread(read_prompts(None, None, path), count)
    asked = list(asked_of(prompts, seeds, longest))
    plain: list[list[int]] = []
    tallies = one_by_one(runner, prompts, asked, plain)
    tallies["together"] = together(runner, prompts, asked, plain)
    tallies["another process"] = elsewhere(artifact, prompts, asked, plain)
    tallies["prompt lookup"] = by_lookup(artifact, prompts, asked, plain)
    for name, tally in tallies.items():
        click.echo(f"{name}: {tally}")
        for line in tally.first[:3]:
            click.echo(f"  {line}")
    return sum(tally.different for tally in tallies.values())


if __name__ == "__main__":
    main()
