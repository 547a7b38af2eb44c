"""`eagle-check`: offline checks of an artifact."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import click
from rich.console import Console
from rich.progress import track

from eagle_aot.artifact import Manifest
from eagle_aot.common.command import given_options
from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import Prompt, read_prompts
from eagle_aot.common.self_test import self_test_prompts
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.options import LabSpec, parse_chain_lens
from eagle_aot.lab.prompts import spread
from eagle_aot.runtime_runner.decode.shape import ChainLen

if TYPE_CHECKING:
    from eagle_aot.runtime_runner import Runner
    from eagle_aot.runtime_runner.decode.shape import Shape

CHECKS, MORE = "Checks", "Options"
T = TypeVar("T")


class CheckSpec(LabSpec, kw_only=True, frozen=True):
    """What to check of an artifact, and how much of it."""

    verify: Annotated[
        bool,
        Option("Hash every file, compare versions, show the manifest; run nothing. This is the "
               "default.", CHECKS),
    ] = False  # fmt: skip
    self_test: Annotated[
        bool,
        Option("Compare drafts with those of the export, and outputs with plain decoding's.",
               CHECKS),
    ] = False  # fmt: skip
    rows: Annotated[
        bool,
        Option("Compare each row of a step with the same row in a step of its own, bit for bit, "
               "and outputs of random prompts with plain decoding's.", CHECKS),
    ] = False  # fmt: skip
    lossless: Annotated[
        Path | None,
        Option("Compare outputs with plain decoding's, and explain the first token that differs.",
               CHECKS, "PROMPTS.jsonl"),
    ] = None  # fmt: skip
    engine: Annotated[
        Path | None,
        Option("Compare the texts of concurrent requests with those of the same requests one by "
               "one, and check the engine after every step.", CHECKS, "PROMPTS.jsonl"),
    ] = None  # fmt: skip
    sampling: Annotated[
        Path | None,
        Option("Compare draws with softmax in float64, and sampled texts of chains, trees, batches "
               "and prompt lookup with plain decoding's.",
               CHECKS, "PROMPTS.jsonl"),
    ] = None  # fmt: skip
    self_test_prompts: Annotated[
        Path | None, Option("Prompts of --self-test; default: ten of its own.", MORE, "FILE.jsonl")
    ] = None
    contexts: Annotated[
        tuple[int, ...],
        Option("Lengths of random prompts and contexts (--rows).", MORE, "N,...", commas=True),
    ] = (17, 512)
    chain_lens: Annotated[
        tuple[ChainLen, ...] | None,
        Option("Drafts per round, numbers or auto. Default: 4; with --rows 1 to 7.", MORE,
               "K,...", commas=True, parse=parse_chain_lens),
    ] = None  # fmt: skip
    trees: Annotated[
        tuple[str, ...],
        Option("A tree to check; may be repeated.", MORE, "DEPTH,TOPK,NODES|FILE", "--tree"),
    ] = ()
    batch_sizes: Annotated[
        tuple[int, ...],
        Option("Numbers of requests in parallel (--engine).", MORE, "B,...", commas=True),
    ] = (2, 4, 8)
    count: Annotated[
        int | None,
        Option("Random prompts of each length (--rows; default: 10), requests (--engine; 1000), "
               "or prompts (--sampling; 300).", MORE, "N", least=1),
    ] = None  # fmt: skip
    max_new_tokens: Annotated[int, Option("Output tokens of each request.", MORE, least=2)] = 64
    seed: Annotated[int, Option("Seed of the random requests (--engine).", MORE)] = 1
    seeds: Annotated[int, Option("Seeds of each prompt (--sampling).", MORE, least=1)] = 5
    draws: Annotated[
        int, Option("Draws of each kind of sampling (--sampling).", MORE, least=10_000)
    ] = 100_000
    target: Annotated[
        str | None,
        Option("The target, as eagle-export names it: --lossless then says by how many "
               "nats it prefers the plain token.", MORE, "NAME|ORG/NAME|PATH"),
    ] = None  # fmt: skip
    raw_prompt: Annotated[
        bool, Option("Do not apply the chat template to prompts (--lossless).", MORE)
    ] = False


OPENING = {"executor", "no_cuda_graph", "kv_cache_memory"}
USED_BY = {
    "verify": {"as_json"},
    "self_test": {"self_test_prompts", "as_json", *OPENING},
    "rows": {"contexts", "chain_lens", "trees", "count", "max_new_tokens", "drafter", "as_json",
             *OPENING},
    "lossless": {"chain_lens", "trees", "max_new_tokens", "target", "raw_prompt", "drafter",
                 "as_json", *OPENING},
    "engine": {"batch_sizes", "count", "max_new_tokens", "seed", "drafter", *OPENING},
    "sampling": {"count", "seeds", "max_new_tokens", "draws", "drafter", *OPENING},
}  # fmt: skip
"""The options that each check uses."""


@spec_command(CheckSpec)
def main(spec: CheckSpec) -> None:
    """Check ARTIFACT: its files, rows, outputs, drafts and sampling.

    Checks run in the order in which they are listed, and stop with exit code 1 at the first that
    fails.

    \b
        python scripts/write_prompts.py prompts.jsonl
        eagle-check gemma4-tiny-xnnpack --self-test --rows --lossless prompts.jsonl
    """
    chosen = [name for name in USED_BY if getattr(spec, name)] or ["verify"]
    refuse_unused(spec, chosen)
    if "verify" in chosen:
        check_files(spec)
        chosen.remove("verify")
    if not chosen:
        return
    runner = spec.load()
    for name in chosen:
        RUNNING[name](spec, runner)


def refuse_unused(spec: CheckSpec, chosen: Sequence[str]) -> None:
    """Raise UsageError for an option that none of the chosen checks uses."""
    used = set[str]().union(*(USED_BY[name] for name in chosen))
    if unused := given_options(but={"artifact", *USED_BY, *used}):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise click.UsageError(f"{flags}: leave out {unused[0]}")
    if spec.self_test and spec.drafter is not None:
        raise click.UsageError("--self-test: leave out --drafter, the export tested its own")


def check_files(spec: CheckSpec) -> None:
    """Print the files' state and the manifest, then raise the first problem."""
    from eagle_aot.lab.checks.integrity import check_integrity, report

    integrity = check_integrity(spec.artifact)
    click.echo(json.dumps(integrity.to_json()) if spec.as_json else "\n".join(report(integrity)))
    integrity.raise_first()


def check_drafts(spec: CheckSpec, runner: "Runner") -> None:
    """Print the self-test, then raise what it warns of."""
    from eagle_aot.lab.checks import self_test

    prompts = self_test_prompts(spec.self_test_prompts)
    finding = self_test.self_test(runner, Manifest.read(spec.artifact), prompts)
    if spec.as_json:
        click.echo(json.dumps(finding.to_json(), allow_nan=False))
    else:
        self_test.show(finding, Console(stderr=True))
    finding.raise_warning()


def check_rows(spec: CheckSpec, runner: "Runner") -> None:
    """Print rows and outputs of random prompts, and exit with 1 where any differs."""
    from eagle_aot.lab.bench.spec import check_range
    from eagle_aot.lab.checks import lossless, rows

    limit = runner.constants.max_seq_len
    if max(spec.contexts) + spec.max_new_tokens > limit:
        raise SettingError(
            f"--contexts {max(spec.contexts)} and {spec.max_new_tokens} new tokens: the "
            f"artifact's context is {limit}"
        )
    check_range("--contexts", spec.contexts, limit)
    trees, chain_lens = shapes_of(spec), spec.chain_lens or range(1, 8)
    compared = rows.check_rows(runner, spec.contexts)
    prompts: list[Prompt] = [
        lossless.random_prompt(runner, context, seed)
        for context in spec.contexts
        for seed in range(spec.count or 10)
    ]
    report = lossless.check_lossless(
        runner,
        shown(prompts),
        list(chain_lens),
        spec.max_new_tokens,
        trees=trees,
        decoders=lossless.OWN_AND_SCRIPT,
    )
    different = sum(comparison.different for _, comparison in compared)
    if spec.as_json:
        counts = {"rows": sum(row.rows for _, row in compared), "different_rows": different}
        click.echo(json.dumps(counts | report.to_json()))
    else:
        Console(width=100).print("Rows alone and elsewhere", rows.rows_table(compared), sep="\n")
        click.echo("\n".join(report.lines()))
    exit_unless(not different and not report.differences)


def check_outputs(spec: CheckSpec, runner: "Runner") -> None:
    """Print outputs that speculation changed, and exit with 1 where there are any."""
    from eagle_aot.lab.checks import lossless

    assert spec.lossless is not None
    context = runner.constants.max_seq_len
    logits = None if spec.target is None else lossless.logits_of_target(spec.target, context)
    report = lossless.check_lossless(
        runner,
        shown(read_prompts(None, None, spec.lossless)),
        spec.chain_lens or (4,),
        spec.max_new_tokens,
        trees=shapes_of(spec),
        raw_prompt=spec.raw_prompt,
        target_logits=logits,
    )
    click.echo(json.dumps(report.to_json()) if spec.as_json else "\n".join(report.lines()))
    exit_unless(not report.differences)


def check_requests(spec: CheckSpec, runner: "Runner") -> None:
    """Print requests that answer differently among others, and exit with 1 where there are any."""
    from eagle_aot.lab.bench.spec import check_range
    from eagle_aot.lab.checks.engine import check_engine, read_ids

    assert spec.engine is not None
    check_range("--batch-sizes", spec.batch_sizes, runner.constants.max_batch_size)
    prompts, count = read_ids(runner, spec.engine), spec.count or 1000
    wrong = check_engine(runner, prompts, spec.batch_sizes, count, spec.max_new_tokens, spec.seed)
    click.echo(f"{wrong} of {count * len(spec.batch_sizes)} texts differ")
    exit_unless(not wrong)


def check_sampling(spec: CheckSpec, runner: "Runner") -> None:
    """Print draws and sampled texts, and exit with 1 where any is wrong."""
    from eagle_aot.lab.checks import sampled_texts
    from eagle_aot.lab.checks.draws import check_draws

    assert spec.sampling is not None
    prompts = spread(read_prompts(None, None, spec.sampling), spec.count or 300)
    fits = True
    for draws in check_draws(spec.draws):
        click.echo(str(draws))
        fits &= draws.fits
    requests = list(sampled_texts.sampled_requests(prompts, spec.seeds, spec.max_new_tokens))
    texts = sampled_texts.decode_plainly(runner, requests)
    for name, same in sampled_texts.compare_everywhere(spec.artifact, runner, texts).items():
        click.echo(f"{name}: {same}")
        for parameters in same.differing[: sampled_texts.SHOWN]:
            click.echo(f"  {parameters}")
        fits &= not same.differing
    exit_unless(fits)


RUNNING = {
    "self_test": check_drafts,
    "rows": check_rows,
    "lossless": check_outputs,
    "engine": check_requests,
    "sampling": check_sampling,
}
"""Checks that run the artifact."""


def shapes_of(spec: CheckSpec) -> list["Shape"]:
    """Return the trees to check. Raises SettingError for what is no tree."""
    from eagle_aot.runtime_runner.decode.shape import parse_tree

    return [parse_tree(tree) for tree in spec.trees]


def shown(prompts: Sequence[T]) -> Iterable[T]:
    """Show a progress bar on stderr, where it is a terminal."""
    console = Console(stderr=True)
    return track(prompts, "prompts", console=console, disable=not console.is_terminal)


def exit_unless(passed: bool) -> None:
    """Exit with 1 where a check has printed what is wrong."""
    if not passed:
        sys.exit(1)
