"""Write prompts for the shipped pair, to check losslessness on: problems and noise.

\b
    python scripts/write_prompts.py prompts.jsonl
    eagle-check gemma4-tiny-xnnpack --lossless prompts.jsonl
"""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import click

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.lab.training.tiny.stories import stories

VOCAB_SIZE = 1024  # of the shipped pair
LONGEST = 300  # tokens of noise: several of its sliding windows


@eagle_command
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.option("--problems", type=click.IntRange(min=0), default=700, show_default=True,
              help="Questions that training never saw.")  # fmt: skip
@click.option("--noise", type=click.IntRange(min=0), default=300, show_default=True,
              help="Prompts of random token ids.")  # fmt: skip
def main(prompts_jsonl: Path, problems: int, noise: int) -> None:
    """Write prompts for the shipped pair, the same ones each time."""
    lines = itertools.chain(questions(problems), random_ids(noise))
    try:
        prompts_jsonl.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    except OSError as error:
        raise SettingError(f"{prompts_jsonl}: cannot be written ({error})") from error


def questions(count: int) -> Iterator[dict[str, str]]:
    """Held-out stories, as `eagle-run --prompts-jsonl` reads them."""
    return ({"prompt": story.question} for story in itertools.islice(stories(2026, "test"), count))


def random_ids(count: int) -> Iterator[dict[str, list[int]]]:
    """Texts that no tokenizer makes: the head is mostly wrong on them."""
    rng = random.Random(3)
    for _ in range(count):
        yield {"token_ids": [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, LONGEST))]}


if __name__ == "__main__":
    main()
