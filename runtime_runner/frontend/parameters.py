"""The parameters of a request."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.decode.shape import ChainLen, Tree
from eagle_aot.runtime_runner.sampling.parameters import SEED_BITS, SamplingParams, whole

DEFAULT_MAX_NEW_TOKENS = 128
MAX_STOP_TEXTS = 64
MAX_ANSWERS = 128


@dataclass(frozen=True, kw_only=True)
class GenerationParams(SamplingParams):
    """The parameters of a request: those of `SamplingParams`, and these.

    `max_new_tokens` is the limit of an answer; it may be 0 only with `prompt_logprobs`. `chain_len`
    is the number of drafts per round, the artifact's default if None, or "auto" to choose it for
    each round by speed. `tree` replaces the chain: (depth, top-k, nodes), as `Shape` says, a file
    of paths, or "auto" to choose between trees, chains and plain decoding. Without `speculate`
    nothing is drafted. None of these changes a token.

    `system` is the system's text, unless the messages begin with one. A `raw_prompt` is not wrapped
    in the chat template. With `echo` the text begins with the prompt's.

    `stop_ids` are added to the artifact's own, or replace them with `ignore_eos`; a stop id is the
    last token of the result. `stop_texts` end the generation before the first of them appears in
    the text.

    `n` is the number of answers; answer i, from 0 on, has the seed `seed + i`. With `reuse`, rows
    that the prefix cache has of an earlier request are not run again, which changes no token.
    """

    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    chain_len: ChainLen | None = None
    speculate: bool = True
    tree: Tree | None = None
    system: str | None = None
    raw_prompt: bool = False
    stop_ids: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()
    ignore_eos: bool = False
    echo: bool = False
    n: int = 1
    reuse: bool = False

    def __post_init__(self) -> None:
        for name in ("stop_ids", "stop_texts", "allowed_ids"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(values))
        super().__post_init__()
        least = 1 if self.prompt_logprobs is None else 0
        if self.max_new_tokens < least:
            raise SettingError(
                f"max_new_tokens {self.max_new_tokens}: must be at least 1, or 0 with "
                "prompt_logprobs"
            )
        if len(self.stop_texts) > MAX_STOP_TEXTS:
            raise SettingError(f"{len(self.stop_texts)} stop texts: at most {MAX_STOP_TEXTS}")
        whole("n", self.n, 1, MAX_ANSWERS)

    def answers(self) -> list[Self]:
        """Return the parameters of each of the `n` answers, which have seeds of their own and
        reuse the prompt's rows."""
        if self.n == 1:
            return [self.drawn()]
        first = replace(self.drawn(), n=1, reuse=True)
        if first.seed is None:
            return [first] * self.n
        seeds = ((first.seed + i) % (1 << SEED_BITS) for i in range(self.n))
        return [replace(first, seed=seed) for seed in seeds]

    def to_json(self) -> dict[str, Any]:
        """Return the values that are not the defaults, for `from_json`."""
        return {
            field.name: tree_text(value) if field.name == "tree" else value
            for field in fields(self)
            if (value := getattr(self, field.name)) != getattr(DEFAULTS, field.name)
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the parameters of a line of `eagle-run --json`. Raises SettingError for an
        unknown name."""
        names = {field.name for field in fields(cls)}
        if unknown := [name for name in values if name not in names]:
            raise SettingError(f"{unknown[0]!r} is no parameter of a request")
        biases = {int(token): bias for token, bias in values.get("logit_bias", {}).items()}
        return cls(**{**values, "logit_bias": biases})


def tree_text(tree: Tree) -> str:
    """Return a tree in the form of `--tree`."""
    return str(tree) if not isinstance(tree, tuple) else ",".join(map(str, tree))


DEFAULTS = GenerationParams()
