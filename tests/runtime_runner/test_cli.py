"""The options of eagle-run, without an artifact."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from eagle_aot.common.spec import spec_command
from eagle_aot.runtime_runner.cli import RunSpec, main


def parse(*words: str) -> RunSpec:
    specs: list[RunSpec] = []
    result = CliRunner().invoke(spec_command(RunSpec)(specs.append), ["artifact", *words])
    assert result.exit_code == 0, result.output
    return specs[0]


@pytest.mark.parametrize(("words", "generation"), [
    ((), {}),
    (("--temperature", "0"), {"temperature": 0.0}),
    (("--no-speculation", "--n", "2"), {"speculate": False, "n": 2}),
    (("--params", '{"logit_bias": {"42": -1.5}}'), {"logit_bias": {42: -1.5}}),
    (("--params", '{"top_k": 5, "n": 2}', "--top-k", "0"), {"top_k": 0, "n": 2}),
])  # fmt: skip
def test_generation_has_the_fields_that_were_given_and_flags_replace_params(
    words: tuple[str, ...], generation: dict[str, Any]
) -> None:
    assert parse(*words).generation == generation


@pytest.mark.parametrize(("words", "line"), [
    ((), "give one of --prompt, --prompt-file, --prompts-jsonl and --chat"),
    (("--prompt", "a", "--prompt-file", "b"), "give one of --prompt"),
    (("--what",), "No such option '--what'"),
    (("--prompt", "a", "--prompt", "b"), "--prompt: may be given only once"),
    (("--prompt", "a", "--n", "0"), "0 is not in the range 1<=x<=128"),
    (("--prompt", "a", "--chain-len", "x"), "'x': must be a whole number or auto"),
    (("--prompt", "a", "--params", "{"), "'{': Input data was truncated"),
    (("--prompt", "a", "--params", '{"top_q": 1}'), "unknown field `top_q`"),
    (("--prompt", "a", "--params", '{"echo": 1}'), "Expected `bool`, got `int` - at `$.echo`"),
    (("--prompt", "a", "--params", '{"min_tokens": -1}'), "min_tokens -1: must be a whole"),
    (("--batch-size", "2"), "--prompt-file, --prompts-jsonl and --chat"),
    (("--chat", "--prompt", "Tom"), "leave out --prompt"),
    (("--chat", "--raw-prompt"), "leave out --raw-prompt"),
    (("--chat", "--plot", "a.png"), "leave out --plot"),
    (("--prompt", "a", "--logprobs", "21", "--json"), "21 is not in the range"),
    (("--prompt", "a", "--batch-size", "2"), "--batch-size goes with --prompts-jsonl"),
    (("--prompt", "a", "--logprobs", "2"), "--logprobs goes with --json"),
    (("--prompt", "a", "--params", '{"logprobs": 2}'), "logprobs goes with --json"),
    (("--chat", "--n", "2"), "leave out --n"),
    (("--no-speculation", "--chain-len", "auto"), "leave out --chain-len"),
    (("--chat", "--params", '{"echo": true}'), "leave out echo"),
])  # fmt: skip
def test_wrong_usage_exits_with_two_before_the_artifact_is_opened(
    words: tuple[str, ...], line: str
) -> None:
    result = CliRunner().invoke(main, ["none", *words])
    assert result.exit_code == 2 and line in result.stderr.splitlines()[-1]


def test_there_are_at_most_36_flags_in_groups() -> None:
    options = [option for option in main.params if isinstance(option, click.Option)]
    assert len(options) <= 36
    text = CliRunner().invoke(main, ["--help"]).output
    for group in ("Prompt", "Generation", "Structured outputs", "Engine", "Speculation", "Output"):
        assert f"\n{group}:\n" in text
