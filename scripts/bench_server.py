"""What is left of an engine's speed behind HTTP: an artifact served, beside the artifact alone.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 8
    python scripts/write_prompts.py prompts.jsonl
    python scripts/bench_server.py gemma4-tiny-xnnpack prompts.jsonl --clients 1,2,4,8,16

First the artifact answers by itself, one text after the other and several side by side; then
`eagle-serve` is started on it, in a process of its own and without reuse of prompts, and OpenAI's
client asks for the same texts, from processes of its own. Each text must be the one that it was
alone, whoever asks. An artifact of random weights, which has no tokenizer, is given one whose words
are its tokens, and prompts of such words.
"""

import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from eagle_aot.artifact import Manifest, tokenizer_files
from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import read_prompts
from eagle_aot.lab.bench.server.figures import EngineTime, Line
from eagle_aot.lab.bench.server.load import Known, Load
from eagle_aot.lab.bench.server.measure import by_itself, served
from eagle_aot.lab.bench.server.tables import tables
from eagle_aot.lab.bench.server.words import made_up, with_words, words
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.options import commit_option, json_option, numbers
from eagle_aot.lab.serving import serving

REPORT_WIDTH = 140


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path), required=False)
@click.option("--clients", callback=numbers, default="1,2,4,8,16", show_default=True)
@click.option("--texts", type=click.IntRange(min=1), default=4, show_default=True,
              help="Of each client, one after the other.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=128, show_default=True)
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=128, show_default=True,
              help="Of prompts that are made up.")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--no-speculation", is_flag=True, help="Decode plainly.")
@click.option("--replicas", type=click.IntRange(min=1), metavar="N", help="Of it, on Ray.")
@click.option("--url", help="Of a server that is there; default: one is started.")
@click.option("--no-alone", is_flag=True, help="Leave out the artifact by itself.")
@commit_option
@json_option
def main(
    artifact: Path,
    clients: list[int],
    replicas: int | None,
    url: str | None,
    no_alone: bool,
    commit: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure a server of ARTIFACT with prompts of PROMPTS_JSONL. Exits with 1 where a text is not
    what it was before."""
    load, known, alone = load_of(artifact, asked), Known(), dict[int, EngineTime]()
    caches = Manifest.read(artifact).max_batch_size
    with ExitStack() as stack:
        readable = stack.enter_context(with_words(artifact))
        if not no_alone:
            sizes = sorted({1, *(min(count, caches) for count in clients)})
            alone = by_itself(readable, sizes, load, known)
        if url is None:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            how = ["--model", artifact.name, "--no-reuse"]
            how += ["--replicas", str(replicas)] if replicas else []
            _, url = stack.enter_context(serving(readable, *how, log=log))
        beside = {count: alone.get(min(count, caches)) for count in clients}
        lines = [served(url, count, beside[count], load, known) for count in clients]
    show(artifact, lines, alone, known, commit, as_json)
    if different := sum(line.different for line in lines):
        raise click.ClickException(f"{different} texts are not what they were")


def load_of(artifact: Path, asked: dict[str, Any]) -> Load:
    """With prompts of a file, or of made-up words where the artifact has no others. Raises
    SettingError where there is none of either."""
    if asked["prompts_jsonl"] is not None:
        found = read_prompts(None, None, asked["prompts_jsonl"])
        prompts = [prompt for prompt in found if isinstance(prompt, str)]
    elif tokenizer_files(artifact):
        raise SettingError(f"{artifact}: has a tokenizer: name a file of prompts")
    else:
        prompts = made_up(words(Manifest.read(artifact)), 64, asked["prompt_tokens"])
    parameters = {
        "max_new_tokens": asked["max_new_tokens"],
        "temperature": asked["temperature"],
        "speculate": not asked["no_speculation"],
    }
    return Load(prompts=prompts, texts=asked["texts"], parameters=parameters)


def show(
    artifact: Path,
    lines: list[Line],
    alone: dict[int, EngineTime],
    known: Known,
    commit: str | None,
    as_json: bool,
) -> None:
    """One JSON object, or tables."""
    head = header(f"{artifact.name}, served", commit)
    if as_json:
        texts = {"texts": len(known.texts), "texts_sha256": known.sha256}
        by_size = {size: asdict(one) for size, one in alone.items()}
        found = {"alone": by_size, "lines": [line.to_json() for line in lines], **texts}
        click.echo(json.dumps({**asdict(head), **found}))
        return
    console = Console(width=REPORT_WIDTH, highlight=False)
    console.print(*title_lines(head), sep="\n")
    if (one := alone.get(1)) is not None and one.first_token is not None:
        first = f"first token after {one.first_token['median']:.3f} s (median)"
        speed = f"{one.tokens_per_second:,.0f} tokens/s"
        console.print(f"\none text after the other, alone: {speed}, {first}")
    console.print(*tables(lines, alone.get(1)), sep="\n")
    different = sum(line.different for line in lines)
    console.print(f"{len(known.texts)} texts, {different} not always the same")


if __name__ == "__main__":
    main()
