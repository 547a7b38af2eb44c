"""Are an artifact's greedy tokens those that transformers gives for the same checkpoint?"""

import json
import sys
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import track

from eagle_aot.common.command import eagle_command
from eagle_aot.common.prompts import read_prompts
from eagle_aot.runtime_runner import load_artifact
from shared.options import json_option


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.option(
    "--prompts", "count", type=click.IntRange(min=1), help="So many of them; default: all."
)
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@json_option
def main(
    artifact: Path,
    checkpoint: Path,
    prompts_jsonl: Path,
    count: int | None,
    max_new_tokens: int,
    as_json: bool,
) -> None:
    """Compare the output of ARTIFACT with greedy decoding of CHECKPOINT, a directory or a .gguf
    file, by transformers in float32.

    Prompts are taken evenly from the file. Of an output that differs it shows the first token that
    does, and by how much transformers' logits prefer its own. Exits with 1 when any differs.
    """
    prompts = read_prompts(None, None, prompts_jsonl)
    step = max(1, len(prompts) // (count or len(prompts)))
    runner, theirs = load_artifact(artifact), load_reference(checkpoint)
    console, differences = Console(stderr=True), []
    chosen = prompts[::step][:count]
    for prompt in track(chosen, "prompts", console=console, disable=not console.is_terminal):
        ids = runner.encode(prompt)
        ours = runner.generate(ids, max_new_tokens).token_ids
        if found := first_difference(theirs, ids, ours):
            differences.append({"prompt": prompt, **found})
    counts = {"prompts": len(chosen), "identical": len(chosen) - len(differences)}
    if as_json:
        click.echo(json.dumps(counts | {"differences": differences}))
    else:
        for found in differences:
            click.echo(json.dumps(found))
        click.echo(f"{counts['identical']} of {counts['prompts']} outputs are transformers' own")
    sys.exit(1 if differences else 0)


def load_reference(checkpoint: Path) -> Any:
    """The model in float32, by transformers alone."""
    from transformers import AutoModelForCausalLM

    if checkpoint.is_dir():
        files = list(checkpoint.glob("*.gguf"))
        checkpoint = files[0] if len(files) == 1 else checkpoint
    where, name = (
        (checkpoint.parent, checkpoint.name) if checkpoint.is_file() else (checkpoint, None)
    )
    return AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32).eval()


@torch.no_grad()
def first_difference(theirs: Any, prompt: list[int], ours: list[int]) -> dict[str, Any] | None:
    """Where greedy decoding of `theirs` leaves our tokens: all of them at once, as long as they
    agree; None where it does not."""
    logits = theirs(torch.tensor([[*prompt, *ours]])).logits[0, len(prompt) - 1 : -1].float()
    choices = logits.argmax(dim=-1).tolist()
    for place, (choice, token) in enumerate(zip(choices, ours, strict=True)):
        if choice != token:
            gap = float(logits[place, choice] - logits[place, token])
            return {"token": place, "theirs": choice, "ours": token, "logits_apart": gap}
    return None


if __name__ == "__main__":
    main()
