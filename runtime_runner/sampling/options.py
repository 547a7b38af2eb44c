"""Options of commands that say how tokens are chosen."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, get_args

import click

from eagle_aot.runtime_runner.sampling.parameters import LogprobsOf

Command = Callable[..., Any]
SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "seed", "min_tokens",
)  # fmt: skip
"""Options that are `GenerationParams` of the same name."""


def biases(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[int, float]:
    """What --logit-bias says: the option's callback."""
    try:
        pairs = [value.split("=") for value in values]
        return {int(token): float(bias) for token, bias in pairs}
    except ValueError as error:
        raise click.BadParameter("expected ID=BIAS, like 42=-1.5") from error


CHOICE = (
    click.option("--temperature", type=float, metavar="T",
                  help="Sample at temperature T; default: 0, the likeliest token."),
    click.option("--top-k", type=int, metavar="N", help="Sample among the N likeliest tokens."),
    click.option("--top-p", type=float, metavar="P",
                  help="Sample among the fewest tokens of probability P together."),
    click.option("--min-p", type=float, metavar="P",
                  help="Sample among tokens of at least P times the likeliest one's probability."),
    click.option("--repetition-penalty", type=float, metavar="R",
                  help="Divide logits of tokens that the text has by R."),
    click.option("--presence-penalty", type=float, metavar="A",
                  help="Take A from logits of tokens that were generated."),
    click.option("--frequency-penalty", type=float, metavar="A",
                  help="Take A from logits for each time that a token was generated."),
    click.option("--logit-bias", multiple=True, metavar="ID=BIAS", callback=biases,
                  help="Add to a token's logit; may be given more than once."),
    click.option("--allow-id", multiple=True, type=int, metavar="ID",
                  help="Choose this token or another one that is named so."),
    click.option("--seed", type=int, metavar="S",
                  help="Of the same tokens each time; default: one is drawn, and told."),
    click.option("--logprobs", type=int, metavar="N",
                 help="In --json, of each token its log probability and the N likeliest's."),
    click.option("--prompt-logprobs", type=int, metavar="N",
                 help="In --json, the same of each token of the prompt."),
    click.option("--logprobs-of", type=click.Choice(get_args(LogprobsOf)), default="model",
                 show_default=True, help="Before or after temperature, penalties and the like."),
    click.option("--min-tokens", type=int, metavar="N", help="No stop id among the first N."),
    click.option("--ignore-eos", is_flag=True, help="Stop at no id but those of --stop-id."),
    click.option("--echo", is_flag=True, help="Begin the text with the prompt's."),
)  # fmt: skip
ANSWERS = (
    click.option("--recommended-sampling", is_flag=True,
                  help="As the model's generation_config.json says, where nothing is said here."),
    click.option("--n", type=int, metavar="N", help="Answers of each prompt; default: 1."),
)  # fmt: skip


def choice_options(command: Command) -> Command:
    """A command that takes those of one answer."""
    return reduce(lambda inner, option: option(inner), reversed(CHOICE), command)


def sampling_options(command: Command) -> Command:
    """A command that takes all of them."""
    return choice_options(reduce(lambda inner, option: option(inner), reversed(ANSWERS), command))


def choice_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """What options, by their names on the command line, say of `GenerationParams`."""
    said = {name: value for name in SAMPLING if (value := given[name]) is not None}
    told = {name: given[name] for name in ("logprobs", "logprobs_of", "prompt_logprobs")}
    some = {"logit_bias": given["logit_bias"], "allowed_ids": given["allow_id"] or None}
    return said | some | told
