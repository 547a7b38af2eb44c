"""Check on this machine what an artifact promises: rows that do not feel their neighbours, and
speculative output that is the plain output.

\b
    eagle-export --target-model gemma4-tiny --output-dir gemma4-tiny-xnnpack
    python scripts/check_artifact.py gemma4-tiny-xnnpack --contexts 17,512

Prompts are random token ids, so any artifact will do. Prints one table per check and exits with 1
when anything differs.
"""

import itertools
import random
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.adaptive.schedule import ConstantSchedule
from eagle_aot.runtime_runner.checks.rows import RowCheck
from eagle_aot.runtime_runner.drafters.scripted import ScriptedDrafter
from eagle_aot.runtime_runner.generate import Limits, generate
from eagle_aot.runtime_runner.round import Round, Running
from eagle_aot.runtime_runner.stats import Stats
from number_list import numbers

console = Console(width=100)


@click.command(help=__doc__, context_settings={"show_default": True})
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--contexts", default="17,512", callback=numbers, help="Prompt lengths, in tokens.")
@click.option("--prompts", type=click.IntRange(min=1), default=10, help="Prompts per context.")
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=64)
@click.option("--chain-lens", default="1,2,3,4,5,6,7", callback=numbers)
@click.option("--no-cuda-graph", is_flag=True, help="Launch every kernel of a round by itself.")
def main(
    artifact: Path,
    contexts: list[int],
    prompts: int,
    max_new_tokens: int,
    chain_lens: list[int],
    no_cuda_graph: bool,
) -> None:
    try:
        runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph)
        check_lengths(runner, contexts, max_new_tokens)
        same = check_rows(runner, contexts)
        same &= check_losslessness(runner, contexts, prompts, chain_lens, max_new_tokens)
    except EagleError as error:
        raise click.ClickException(str(error)) from error
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


def check_losslessness(
    runner: Runner, contexts: list[int], count: int, chains: list[int], new_tokens: int
) -> bool:
    """Every prompt plainly and with every chain length; the tokens must be the same.

    Once with the artifact's own head, and once with drafts that are right in a changing number of
    places, because a head may be right always or never.
    """
    table = Table("context", "chain length", "drafts", "prompts", "identical", "tokens per round")
    different = 0
    repeated = []
    for context in contexts:
        prompts = [tokens(runner, context, seed) for seed in range(count)]
        plain = [runner.generate(p, new_tokens, speculate=False).token_ids for p in prompts]
        repeated += [context for p in plain if len(set(p)) == 1]
        for chain, (name, generate_) in itertools.product(chains, GENERATORS.items()):
            found = [generate_(runner, p, t, chain) for p, t in zip(prompts, plain, strict=True)]
            same = sum(output == t for (output, _), t in zip(found, plain, strict=True))
            tau = sum(s.emitted for _, s in found) / max(sum(s.rounds for _, s in found), 1)
            table.add_row(str(context), str(chain), name, str(count), str(same), f"{tau:.2f}")
            different += count - same
    console.print(f"Speculative against plain output, {new_tokens} tokens, {runner.executor.name}")
    console.print(table)
    if repeated:
        console.print(f"{len(repeated)} plain outputs are one token repeated, which checks little")
    return different == 0


def with_head(
    runner: Runner, prompt: list[int], plain: list[int], chain_len: int
) -> tuple[list[int], Stats]:
    """As a user would."""
    result = runner.generate(prompt, len(plain), chain_len)
    return result.token_ids, result.stats


def with_script(
    runner: Runner, prompt: list[int], plain: list[int], chain_len: int
) -> tuple[list[int], Stats]:
    """With 0, 1, 2, ... right drafts per round, from the plain output, recorded like the head's."""
    executor = runner.executor
    drafter = ScriptedDrafter(len(prompt), plain, lambda n: n % (chain_len + 1), executor.device)
    running = Running([0], runner.constants.tail, executor.device)
    round_ = Round(runner.target, drafter, chain_len, running)
    round_.play = executor.repeat(round_.step)
    limits = Limits(room=len(plain), stop_ids=frozenset(runner.constants.eos_ids))
    return generate(ConstantSchedule(round_), prompt, limits, lambda run: None)


GENERATORS = {"head": with_head, "scripted": with_script}


def tokens(runner: Runner, count: int, seed: int) -> list[int]:
    """Random token ids."""
    rng = random.Random(seed)
    return [rng.randrange(runner.constants.vocab_size) for _ in range(count)]


if __name__ == "__main__":
    main()
