"""What a request asks for beside its prompt."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.adaptive.chain_length import ChainLen
from eagle_aot.runtime_runner.decode.shape import Tree
from eagle_aot.runtime_runner.sampling.parameters import SEED_BITS, SamplingParams, whole

DEFAULT_MAX_NEW_TOKENS = 128
MAX_STOP_TEXTS = 64
MAX_ANSWERS = 128


@dataclass(frozen=True, kw_only=True)
class GenerationParams(SamplingParams):
    """How its tokens are chosen, as `SamplingParams` says, and:

    `max_new_tokens` at most, 0 only with `prompt_logprobs`. `chain_len` drafts per round, the
    artifact's default if None, or "auto" for as many as pay, round by round; `tree` takes the
    chain's place: (depth, top-k, nodes), as `Shape` says, a file of paths, or "auto" for trees or
    chains, whatever pays. Without `speculate` it is decoded plainly, with the same tokens as
    result.

    `system` stands before text, and before messages that do not begin with a system's; a
    `raw_prompt` is not wrapped in the chat template. With `echo` the text begins with the prompt's.

    `stop_ids` are added to the artifact's own, or take their place with `ignore_eos`; their tokens
    are the last of the result's. `stop_texts` end the generation before the first of them appears
    in the text.

    `n` answers, of which number i, from 0 on, has the seed `seed + i`. With `reuse`, rows that the
    cache holds since an earlier text, because this prompt begins as that one and its answer did,
    are not run again. Tokens are the same without.
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
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(given))
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
        """What each of the `n` asks for: one with a seed of its own. The prompt's rows are kept
        between them."""
        if self.n == 1:
            return [self.drawn()]
        first = replace(self.drawn(), n=1, reuse=True)
        if first.seed is None:
            return [first] * self.n
        seeds = ((first.seed + i) % (1 << SEED_BITS) for i in range(self.n))
        return [replace(first, seed=seed) for seed in seeds]

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults; `from_json` takes it."""
        return {
            field.name: tree_text(value) if field.name == "tree" else value
            for field in fields(self)
            if (value := getattr(self, field.name)) != getattr(DEFAULTS, field.name)
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """What a line of `eagle-run --json` was asked for. Raises SettingError for what is not
        known."""
        known = {field.name for field in fields(cls)}
        if others := [name for name in found if name not in known]:
            raise SettingError(f"{others[0]!r} is no parameter of a request")
        biases = {int(token): bias for token, bias in found.get("logit_bias", {}).items()}
        return cls(**{**found, "logit_bias": biases})


def tree_text(tree: Tree) -> str:
    """As `--tree` takes it."""
    return str(tree) if not isinstance(tree, tuple) else ",".join(map(str, tree))


DEFAULTS = GenerationParams()
