"""The parameters of a request."""

import copy
from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec

from eagle_aot.common.errors import SettingError
from eagle_aot.common.spec import Option
from eagle_aot.common.structs import convert
from eagle_aot.common.text import nearest
from eagle_aot.runtime_runner.decode.shape import AUTO, ChainLen, Tree
from eagle_aot.runtime_runner.sampling.parameters import GENERATION, SEED_BITS, SamplingParams

PROMPT, SPECULATION = "Prompt", "Speculation"
MAX_STOP_TEXTS = 64
MAX_ANSWERS = 128


def parse_chain_len(text: str) -> ChainLen:
    """Read a chain length, a number or auto. Raises ValueError."""
    try:
        return AUTO if text == AUTO else int(text)
    except ValueError as error:
        raise ValueError(f"must be a whole number or {AUTO}") from error


class GenerationParams(SamplingParams, kw_only=True, frozen=True):
    """The parameters of a request: sampling parameters, and what concerns its whole text.

    `max_new_tokens` may be 0 only with `prompt_logprobs`. A `chain_len` of None is the artifact's
    default. `tree` replaces the chain. No token depends on `chain_len`, `speculate` and `tree`.

    A stop id is the last token of the result. The text has no special tokens but `visible_ids`.
    `stop_texts` end the generation before the first of them appears in the text.

    `n` is the number of answers; answer i, from 0 on, has the seed `seed + i`. With `reuse`, rows
    that the prefix cache has of an earlier request with the same `cache_salt` are not run again,
    which changes no token.
    """

    max_new_tokens: Annotated[int, Option(
        "Most tokens of an answer.", GENERATION, "N",
        least=0)] = 128  # fmt: skip
    chain_len: Annotated[ChainLen | None, Option(
        "Draft tokens per round, or auto to choose by speed. Default: the artifact's.", SPECULATION,
        "K", parse=parse_chain_len)] = None  # fmt: skip
    speculate: Annotated[bool, Option(
        "Decode without drafts; the tokens are the same.", SPECULATION,
        flag="--no-speculation")] = True  # fmt: skip
    tree: Annotated[Tree | None, Option(
        "Draft a tree: its size, a file of paths, or auto to choose among trees, chains and plain "
        "decoding by speed.", SPECULATION, "DEPTH,TOPK,NODES|FILE|auto",
        parse=str)] = None  # fmt: skip
    system: Annotated[str | None, Option(
        "System prompt, unless messages begin with one.", PROMPT, "TEXT")] = None  # fmt: skip
    raw_prompt: Annotated[bool, Option(
        "Do not apply the chat template to the prompt.", PROMPT)] = False  # fmt: skip
    stop_ids: Annotated[tuple[int, ...], Option(
        "Token ids that end the answer, in addition to the artifact's.",
        shown=False)] = ()  # fmt: skip
    stop_texts: Annotated[tuple[str, ...], Option(
        "End the answer before this text; may be repeated.", GENERATION, "TEXT",
        "--stop")] = ()  # fmt: skip
    ignore_eos: Annotated[bool, Option("Ignore the artifact's stop ids.", GENERATION)] = False
    echo: Annotated[bool, Option("Begin the text with the prompt's.", shown=False)] = False
    n: Annotated[int, Option(
        "Answers to each prompt.", GENERATION, "N", least=1, most=MAX_ANSWERS)] = 1  # fmt: skip
    visible_ids: Annotated[tuple[int, ...], Option(
        "Special tokens that the text shows.", shown=False)] = ()  # fmt: skip
    reuse: Annotated[bool, Option("Use the prefix cache.", shown=False)] = False
    cache_salt: Annotated[str, Option(
        "Share cached rows with requests of the same salt alone.", shown=False)] = ""  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("stop_ids", "stop_texts", "allowed_ids", "choices", "visible_ids"):
            if (values := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, tuple(values))
        super().__post_init__()
        if self.max_new_tokens == 0 and self.prompt_logprobs is None:
            raise SettingError("max_new_tokens 0: must be at least 1, or 0 with prompt_logprobs")
        if len(self.stop_texts) > MAX_STOP_TEXTS:
            raise SettingError(f"{len(self.stop_texts)} stop texts: at most {MAX_STOP_TEXTS}")
        if self.ignore_eos and self.structure is not None:
            raise SettingError(f"{self.structure[0]} does not go with ignore_eos: leave out one")

    @classmethod
    def of(cls, params: SamplingParams | None, fields: Mapping[str, Any]) -> Self:
        """Return `params` with other values of `fields`; None leaves a field as it is. Raises
        SettingError."""
        values = {} if params is None else msgspec.structs.asdict(params)
        return cls(**values | {name: v for name, v in fields.items() if v is not None})

    def answers(self) -> list[Self]:
        """Return the parameters of each of the `n` answers, which have seeds of their own and
        reuse the prompt's rows."""
        if self.n == 1:
            return [self.drawn()]
        first = msgspec.structs.replace(self.drawn(), n=1, reuse=True)
        if first.seed is None:
            return [first] * self.n
        answers = [copy.copy(first) for _ in range(self.n)]  # `replace` would check each again
        for i, answer in enumerate(answers):
            msgspec.structs.force_setattr(answer, "seed", (first.seed + i) % (1 << SEED_BITS))
        return answers

    def to_json(self) -> dict[str, Any]:
        """Return the values that are not the defaults, for `from_json`."""
        return {
            name: tree_text(value) if name == "tree" else value
            for name, value in msgspec.structs.asdict(self).items()
            if value != getattr(DEFAULTS, name)
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the parameters of a line of `eagle-run --json`. Raises SettingError for an
        unknown name and a value of another type."""
        try:
            return convert(values, cls, str_keys=True)
        except msgspec.ValidationError as error:
            unknown = next((name for name in values if name not in cls.__struct_fields__), "")
            raise SettingError(f"{error}{nearest(unknown, cls.__struct_fields__)}") from error


def parse_params(text: str) -> dict[str, Any]:
    """Read the fields of `GenerationParams` in a JSON object, by name. Raises ValueError."""
    try:
        values = msgspec.json.decode(text, type=dict[str, Any])
        params = GenerationParams.from_json(values)
    except (msgspec.MsgspecError, SettingError) as error:
        raise ValueError(str(error)) from error
    return {name: getattr(params, name) for name in values}


def tree_text(tree: Tree) -> str:
    """Return a tree in the form of `--tree`."""
    return str(tree) if not isinstance(tree, tuple) else ",".join(map(str, tree))


DEFAULTS = GenerationParams()
