"""Does speculation change a token? Of many prompts, with every first difference explained."""

import json
import sys
from functools import partial
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import track

from eagle_aot.common.command import eagle_command
from eagle_aot.common.prompts import read_prompts
from eagle_aot.lab.checks.lossless import check_lossless
from eagle_aot.lab.options import chain_lengths, drafter_option, json_option, no_cuda_graph_option
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.adaptive.chain_length import ChainLen
from eagle_aot.runtime_runner.decode.shape import parse_tree
from eagle_aot.targets import TapTarget, load_target


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.option("--chain-lens", default="4", show_default=True, callback=chain_lengths,
              help="Drafts per round; auto among them.")  # fmt: skip
@click.option("--tree", "trees", multiple=True, metavar="DEPTH,TOPK,NODES|FILE",
              help="A tree as well; may be given more than once.")  # fmt: skip
@drafter_option
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=128, show_default=True)
@click.option("--raw-prompt", is_flag=True, help="Do not wrap prompts in the chat template.")
@click.option("--target", metavar="NAME_OR_DIR", help="The target, to tell the gap in nats.")
@no_cuda_graph_option
@json_option
def main(
    artifact: Path,
    prompts_jsonl: Path,
    chain_lens: list[ChainLen],
    trees: tuple[str, ...],
    drafter: str | None,
    max_new_tokens: int,
    raw_prompt: bool,
    target: str | None,
    no_cuda_graph: bool,
    as_json: bool,
) -> None:
    """Compare speculative with plain output of ARTIFACT, token for token.

    Of an output that differs it shows the first token that does: its position, both tokens and,
    where the target's checkpoint is named, by how many nats the target itself prefers the plain
    one. Exits with 1 when anything differs.
    """
    prompts = read_prompts(None, None, prompts_jsonl)
    runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph, drafter=drafter)
    eager = None if target is None else load_target(target, runner.constants.max_seq_len)
    logits = None if eager is None else partial(last_logits, eager)
    console = Console(stderr=True)
    shown = track(prompts, "prompts", console=console, disable=not console.is_terminal)
    found = check_lossless(
        runner,
        shown,
        chain_lens,
        max_new_tokens,
        trees=[parse_tree(tree) for tree in trees],
        raw_prompt=raw_prompt,
        logits=logits,
    )
    click.echo(json.dumps(found.to_json()) if as_json else "\n".join(found.lines()))
    sys.exit(1 if found.differences else 0)


@torch.no_grad()
def last_logits(target: TapTarget, ids: list[int]) -> torch.Tensor:
    """Behind `ids`, float32 [vocabulary], in chunks that a sliding window takes."""
    target.reset_cache()
    longest = target.sliding_window or len(ids)
    for first in range(0, len(ids), longest):
        chunk = torch.tensor([ids[first : first + longest]])
        positions = torch.arange(first, first + chunk.shape[1])
        logits, _ = target.forward_logits_taps(chunk, positions, last_logits_only=True)
    return logits[0, -1].float()


if __name__ == "__main__":
    main()
