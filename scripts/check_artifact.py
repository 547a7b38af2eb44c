"""Check on this machine what an artifact promises: rows that do not feel their neighbours, and
speculative output that is the plain output."""

import itertools
import random
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.lab.checks.lossless import OWN_AND_SCRIPT, Comparison, compare
from eagle_aot.lab.checks.rows import RowCheck
from eagle_aot.lab.options import drafter_option, no_cuda_graph_option, numbers
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.decode.shape import Shape, parse_tree

console = Console(width=100)


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--contexts", default="17,512", show_default=True, callback=numbers,
              help="Prompt lengths, in tokens.")  # fmt: skip
@click.option("--prompts", type=click.IntRange(min=1), default=10, show_default=True,
              help="Prompts per context.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=64, show_default=True)
@click.option("--chain-lens", default="1,2,3,4,5,6,7", show_default=True, callback=numbers)
@click.option("--tree", "trees", multiple=True, metavar="DEPTH,TOPK,NODES|FILE",
              help="A tree as well; may be given more than once.")  # fmt: skip
@drafter_option
@no_cuda_graph_option
def main(
    artifact: Path,
    contexts: list[int],
    prompts: int,
    max_new_tokens: int,
    chain_lens: list[int],
    trees: tuple[str, ...],
    drafter: str | None,
    no_cuda_graph: bool,
) -> None:
    """Check on this machine what ARTIFACT promises: rows that do not feel their neighbours, and
    speculative output that is the plain output.

    \b
        eagle-export --target-model gemma4-tiny --output-dir gemma4-tiny-xnnpack
        python scripts/check_artifact.py gemma4-tiny-xnnpack --contexts 17,512

    Prompts are random token ids, so any artifact will do. Prints one table per check and exits with
    1 when anything differs.
    """
    shapes = [parse_tree(tree) for tree in trees]
    runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph, drafter=drafter)
    check_lengths(runner, contexts, max_new_tokens)
    same = check_rows(runner, contexts)
    same &= check_outputs(runner, contexts, prompts, chain_lens, shapes, max_new_tokens)
    sys.exit(0 if same else 1)


def check_lengths(runner: Runner, contexts: list[int], new_tokens: int) -> None:
    """Raise SettingError unless every prompt and what follows it fit in the context."""
    limit = runner.constants.max_seq_len
    if max(contexts) + new_tokens > limit:
        raise SettingError(
            f"--contexts {max(contexts)} and {new_tokens} new tokens: the artifact's context is "
            f"{limit}"
        )


def check_rows(runner: Runner, contexts: list[int]) -> bool:
    """Rows alone (T = 1) against the same rows in every other situation."""
    table = Table("context", "situation", "rows", "different")
    total = 0
    for context in [0, *contexts]:
        for found in RowCheck(runner, context).all():
            table.add_row(str(context), found.situation, str(found.rows), str(found.different))
            total += found.different
    console.print("A row alone and elsewhere, bit for bit (logits and features)")
    console.print(table)
    return total == 0


def check_outputs(
    runner: Runner,
    contexts: list[int],
    count: int,
    chain_lens: list[int],
    trees: list[Shape],
    new_tokens: int,
) -> bool:
    """Every prompt with drafts of either kind, of every chain length and every tree, against itself
    plainly."""
    table = Table("context", "chain or tree", "drafts", "prompts", "identical", "tokens per round")
    rounds = list(itertools.product(map(str, [*chain_lens, *trees]), OWN_AND_SCRIPT))
    found: list[Comparison] = []
    for context in contexts:
        prompts = [tokens(runner, context, seed) for seed in range(count)]
        here = [
            one
            for prompt in prompts
            for one in compare(runner, prompt, chain_lens, new_tokens, OWN_AND_SCRIPT, trees)
        ]
        for index, (shape, drafts) in enumerate(rounds):
            table.add_row(str(context), shape, drafts, *cells(here[index :: len(rounds)]))
        found += here
    console.print(f"Speculative against plain output, {new_tokens} tokens, {runner.executor.name}")
    console.print(table)
    each = found[:: len(rounds)]  # prompt, once
    if repeated := sum(len(set(one.plain)) == 1 for one in each):
        console.print(f"{repeated} plain outputs are one token repeated, which checks little")
    return all(one.identical for one in found)


def cells(found: list[Comparison]) -> tuple[str, str, str]:
    """How many prompts, how many outputs that are identical, and tokens per round."""
    rounds = sum(one.stats.rounds for one in found)
    tau = sum(one.stats.emitted for one in found) / max(rounds, 1)
    return str(len(found)), str(sum(one.identical for one in found)), f"{tau:.2f}"


def tokens(runner: Runner, count: int, seed: int) -> list[int]:
    """Random token ids."""
    rng = random.Random(seed)
    return [rng.randrange(runner.constants.vocab_size) for _ in range(count)]


if __name__ == "__main__":
    main()
