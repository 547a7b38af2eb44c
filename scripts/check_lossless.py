"""Does speculation change a token? Of many prompts, with every first difference explained."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import track

from eagle_aot.artifact import tokenizer_files
from eagle_aot.common.command import eagle_command
from eagle_aot.common.prompts import Prompt, read_prompts
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.adaptive.chain_length import ChainLen
from eagle_aot.targets import TapTarget, load_target
from number_list import chain_lengths


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first token that differs, None where an output has ended before it.

    `prompt` counts from 1, `position` from 0 within the output; `nats` is what the target gives the
    plain token more than the other one, None where that is not known.
    """

    prompt: int
    chain_len: ChainLen
    position: int
    plain: int | None
    speculative: int | None
    plain_text: str | None = None
    speculative_text: str | None = None
    nats: float | None = None


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.option("--chain-lens", default="4", show_default=True, callback=chain_lengths,
              help="Drafts per round; auto among them.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=128, show_default=True)
@click.option("--raw-prompt", is_flag=True, help="Do not wrap prompts in the chat template.")
@click.option("--target", metavar="NAME_OR_DIR", help="The target, to tell the gap in nats.")
@click.option("--no-cuda-graph", is_flag=True, help="Launch every kernel of a round by itself.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    artifact: Path,
    prompts_jsonl: Path,
    chain_lens: list[ChainLen],
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
    runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph)
    eager = None if target is None else load_target(target, runner.constants.max_seq_len)
    check = Check(runner, chain_lens, max_new_tokens, raw_prompt, eager)
    differences = list(check.all(prompts))
    report(check, len(prompts), differences, as_json)
    sys.exit(1 if differences else 0)


class Check:
    """Plain decoding once and speculative decoding with every chain length, of each prompt."""

    def __init__(
        self,
        runner: Runner,
        chain_lens: Sequence[ChainLen],
        max_new_tokens: int,
        raw: bool,
        target: TapTarget | None = None,
    ) -> None:
        self.runner, self.target = runner, target
        self.chain_lens, self.max_new_tokens, self.raw = chain_lens, max_new_tokens, raw
        self.tokens = 0  # compared

    def all(self, prompts: Sequence[Prompt]) -> Iterator[Difference]:
        """What differs. A bar shows the way where stderr is a terminal."""
        console = Console(stderr=True)
        shown = track(prompts, "prompts", console=console, disable=not console.is_terminal)
        for number, prompt in enumerate(shown, start=1):
            yield from self.one(number, prompt)

    def one(self, number: int, prompt: Prompt) -> Iterator[Difference]:
        """What differs of one prompt."""
        how = {"max_new_tokens": self.max_new_tokens, "raw_prompt": self.raw}
        plain = self.runner.generate(prompt, speculate=False, **how).token_ids
        for chain_len in self.chain_lens:
            found = self.runner.generate(prompt, chain_len=chain_len, **how).token_ids
            self.tokens += len(plain)
            if found != plain:
                yield self.difference(number, prompt, chain_len, plain, found)

    def difference(
        self, number: int, prompt: Prompt, chain_len: ChainLen, plain: list[int], found: list[int]
    ) -> Difference:
        """The first one of two outputs that are not the same."""
        pairs = zip(plain, found, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(found)))
        ours, theirs = (ids[place] if place < len(ids) else None for ids in (plain, found))
        return Difference(
            prompt=number,
            chain_len=chain_len,
            position=place,
            plain=ours,
            speculative=theirs,
            plain_text=self.text(ours),
            speculative_text=self.text(theirs),
            nats=self.nats(prompt, plain[:place], ours, theirs),
        )

    def text(self, token: int | None) -> str | None:
        """Of one token, where the artifact has a tokenizer."""
        if token is None or not tokenizer_files(self.runner.directory):
            return None
        return self.runner.tokenizer.decode([token])

    def nats(
        self, prompt: Prompt, before: list[int], plain: int | None, other: int | None
    ) -> float | None:
        """How much more likely the plain token is behind the prompt and what both share."""
        if self.target is None or plain is None or other is None:
            return None
        ids = self.runner.tokenizer.encode(prompt, self.raw) if isinstance(prompt, str) else prompt
        logits = last_logits(self.target, [*ids, *before])
        return float(logits[plain] - logits[other])


@torch.no_grad()
def last_logits(target: TapTarget, ids: Sequence[int]) -> torch.Tensor:
    """Behind `ids`, float32 [vocabulary], in chunks that a sliding window takes."""
    target.reset_cache()
    longest = target.sliding_window or len(ids)
    for first in range(0, len(ids), longest):
        chunk = torch.tensor([ids[first : first + longest]])
        positions = torch.arange(first, first + chunk.shape[1])
        logits, _ = target.forward_logits_taps(chunk, positions, last_logits_only=True)
    return logits[0, -1].float()


def report(check: Check, prompts: int, differences: list[Difference], as_json: bool) -> None:
    """For a program, or a line per difference and one of all."""
    compared = prompts * len(check.chain_lens)
    identical = compared - len(differences)
    if as_json:
        counts = {"prompts": prompts, "compared": compared, "identical": identical}
        found = [asdict(difference) for difference in differences]
        click.echo(json.dumps(counts | {"tokens": check.tokens, "differences": found}))
        return
    for one in differences:
        gap = "" if one.nats is None else f", {one.nats:.4f} nats apart"
        click.echo(
            f"prompt {one.prompt}, K = {one.chain_len}, token {one.position}: plain {one.plain} "
            f"{one.plain_text!r}, speculative {one.speculative} {one.speculative_text!r}{gap}"
        )
    click.echo(f"{identical} of {compared} outputs identical, {check.tokens} tokens compared")


if __name__ == "__main__":
    main()
