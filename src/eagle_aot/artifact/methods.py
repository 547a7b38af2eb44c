"""What a program publishes: its methods, and its constants, each a method of its own."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from eagle_aot.artifact.files import PROGRAM
from eagle_aot.common.errors import ArtifactError

PREFILL = "prefill"
TARGET_VERIFY = "target_verify"
DRAFT_DECODE = "draft_decode"
TARGET_METHODS = (PREFILL, TARGET_VERIFY)
METHODS = (*TARGET_METHODS, DRAFT_DECODE)
"""Those of a program with an EAGLE-3 head."""
MTP_DECODE = "mtp_decode"
PEAGLE_DECODE = "peagle_decode"
MASK = -1
"""A token of `peagle_decode` that is not known yet."""
DFLASH_CONTEXT, DFLASH_BLOCK = "dflash_context", "dflash_block"

EAGLE3 = "eagle3"
P_EAGLE = "p-eagle"
GEMMA4_ASSISTANT = "gemma4-assistant"
DFLASH = "dflash"
NGRAM = "ngram"
DRAFTERS = {
    EAGLE3: (DRAFT_DECODE,),
    P_EAGLE: (PEAGLE_DECODE,),
    GEMMA4_ASSISTANT: (MTP_DECODE,),
    DFLASH: (DFLASH_CONTEXT, DFLASH_BLOCK),
    NGRAM: (),
}
"""What drafts, by its name in a manifest, with the methods that it adds to the target's."""


DRAFT_PREFILL = "draft_prefill"
"""What a drafter may bring besides: it stores a prompt's rows, and computes nothing from them."""

COPY_ROWS = "copy_rows"
"""What a program for several sequences may have besides: one takes over rows of another."""


ENCODE_IMAGE = "encode_image_"
"""How methods are called that a program has besides where prompts may have pictures."""


def encode_image(rows: int) -> str:
    """The one for pictures of so many rows at most."""
    return f"{ENCODE_IMAGE}{rows}"


def methods_of(drafter: str, listed: Collection[str] = ()) -> tuple[str, ...]:
    """Of a program whose drafter is called so; the target's alone where it is not known here.

    Of those that it may have besides, the ones that a manifest has `listed`.
    """
    brought = [name for name in (DRAFT_PREFILL, COPY_ROWS) if name in listed]
    brought += [name for name in listed if name.startswith(ENCODE_IMAGE)]
    return (*TARGET_METHODS, *DRAFTERS.get(drafter, ()), *brought)


@dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """What the program publishes about itself, each as a constant method of the `.pte`.

    Lengths and sizes are counts of tokens, layers or elements; `sliding_window` is 0 for a target
    without sliding layers; `max_rows` bounds the rows of a step over all its sequences, of which
    the caches hold `max_batch_size`; `tail` is how many tokens of its path a row names by slot;
    `flat_slots` are those of a sequence in a cache of all its positions; `eos_ids` stop generation.
    """

    max_seq_len: int
    vocab_size: int
    n_layers: int
    min_prefill_chunk: int
    max_prefill_chunk: int
    sliding_window: int
    chain_len: int
    max_rows: int
    max_batch_size: int
    tail: int
    flat_slots: int
    draft_vocab_size: int
    hidden_size: int
    eos_ids: tuple[int, ...]
    kv_cache: bool = True

    def methods(self) -> dict[str, Any]:
        """Constant method name -> value, as ExecuTorch stores it."""
        values = asdict(self)
        published = {method: values[name] for name, method in constant_methods().items()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in published.items()}

    @classmethod
    def from_methods(cls, published: Mapping[str, Sequence[Any]]) -> "Constants":
        """Read them back from the outputs of the constant methods.

        Raises ArtifactError naming a constant that is missing or not the one value it should be.
        """
        values: dict[str, Any] = {}
        for name, method in constant_methods().items():
            outputs = published.get(method)
            if outputs is None or (name != "eos_ids" and len(outputs) != 1):
                raise ArtifactError(f"{PROGRAM}: constant {method} is missing: export again")
            values[name] = tuple(outputs) if name == "eos_ids" else outputs[0]
        return cls(**values)


def constant_methods() -> dict[str, str]:
    """Field of `Constants` -> name of its constant method."""
    names = {field.name: f"get_{field.name}" for field in fields(Constants)}
    return names | {"kv_cache": "use_kv_cache"}
