"""What a program publishes: its methods, and its constants, which are methods as well."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from eagle_aot.artifact.files import PROGRAM
from eagle_aot.common.errors import ArtifactError

PREFILL = "prefill"
TARGET_VERIFY = "target_verify"
DRAFT_DECODE = "draft_decode"
TARGET_METHODS = (PREFILL, TARGET_VERIFY)
METHODS = (*TARGET_METHODS, DRAFT_DECODE)
"""The methods of a program with an EAGLE-3 head or an MTP layer."""
TABLE_SCREEN = "table_screen"
"""The owner of an output table's INT8 copy, in the names of its tensors."""
LOSSLESS: Final = "int8-lossless"
"""The value of `--table-quant` with which a program has one."""
MTP_DECODE = "mtp_decode"
PEAGLE_DECODE = "peagle_decode"
MASK = -1
"""The token of a row of `peagle_decode` that is not known yet."""
DFLASH_CONTEXT, DFLASH_BLOCK = "dflash_context", "dflash_block"
DFLASH2_BLOCK, DFLASH2_SCORES = "dflash2_block", "dflash2_scores"
DSPARK_BLOCK, DSPARK_BIAS = "dspark_block", "dspark_bias"
DFLASH_BLOCKS = (DFLASH_BLOCK, DFLASH2_BLOCK, DSPARK_BLOCK)
"""The methods that run blocks of all kinds."""
CANDIDATES = 16
"""Tokens of each place of a block that `dflash2_scores` scores."""

EAGLE3 = "eagle3"
P_EAGLE = "p-eagle"
GEMMA4_ASSISTANT = "gemma4-assistant"
MTP = "mtp"
DFLASH = "dflash"
DFLASH2 = "dflash2"
DSPARK = "dspark"
NGRAM = "ngram"
DRAFTERS = {
    EAGLE3: (DRAFT_DECODE,),
    P_EAGLE: (PEAGLE_DECODE,),
    GEMMA4_ASSISTANT: (MTP_DECODE,),
    MTP: (DRAFT_DECODE,),
    DFLASH: (DFLASH_CONTEXT, DFLASH_BLOCK),
    DFLASH2: (DFLASH_CONTEXT, DFLASH2_BLOCK, DFLASH2_SCORES),
    DSPARK: (DFLASH_CONTEXT, DSPARK_BLOCK, DSPARK_BIAS),
    NGRAM: (),
}
"""The kinds of drafters, with the methods that each adds to the target's."""


DRAFT_PREFILL = "draft_prefill"
"""An optional method of a drafter: stores a prompt's rows in its caches and predicts nothing."""

COPY_ROWS = "copy_rows"
"""An optional method of a program for several sequences: copies rows between them."""

COPY_STATES = "copy_states"
"""The method of a target with recurrent states that keeps them, and returns to them."""
KEPT_STATES = 4
"""How many states of earlier positions are kept for each sequence."""
STATE_BLOCK = 32
"""`prefill` takes tokens into recurrent states by blocks, which begin at multiples of this."""


ENCODE_IMAGE = "encode_image_"
"""The beginning of the names of methods that encode images."""


def encode_image(rows: int) -> str:
    """Return the name of the method for images of at most `rows` rows."""
    return f"{ENCODE_IMAGE}{rows}"


def methods_of(drafter: str, listed: Collection[str] = ()) -> tuple[str, ...]:
    """Return the methods of a program with a drafter of this kind; only the target's for an
    unknown kind. Optional methods are included if they are in `listed`, a manifest's methods."""
    optional = [name for name in (DRAFT_PREFILL, COPY_ROWS, COPY_STATES) if name in listed]
    optional += [name for name in listed if name.startswith(ENCODE_IMAGE)]
    return (*TARGET_METHODS, *DRAFTERS.get(drafter, ()), *optional)


@dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """What the program publishes about itself, each as a constant method of the `.pte`.

    Lengths and sizes are counts of tokens, layers or elements; `sliding_window` is 0 for a target
    without sliding layers; `max_rows` bounds the rows of a sequence in a step, `max_step_rows`
    those of all; `max_batch_size` is how many sequences the caches hold; `tail` is how many tokens
    of its path a row names by slot; `flat_slots` is the number of a sequence's slots in
    a cache of all positions; `eos_ids` stop generation.
    """

    max_seq_len: int
    vocab_size: int
    n_layers: int
    min_prefill_chunk: int
    max_prefill_chunk: int
    sliding_window: int
    chain_len: int
    max_rows: int
    max_step_rows: int
    max_batch_size: int
    tail: int
    flat_slots: int
    draft_vocab_size: int
    hidden_size: int
    eos_ids: tuple[int, ...]
    kv_cache: bool = True

    def methods(self) -> dict[str, Any]:
        """Return the value of each constant method, as ExecuTorch stores it."""
        values = asdict(self)
        published = {method: values[name] for name, method in constant_methods().items()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in published.items()}

    @classmethod
    def from_methods(cls, published: Mapping[str, Sequence[Any]]) -> "Constants":
        """Read the constants from the outputs of the constant methods.

        Raises ArtifactError with the name of a constant that is missing or has several values.
        """
        values: dict[str, Any] = {}
        for name, method in constant_methods().items():
            outputs = published.get(method)
            if outputs is None or (name != "eos_ids" and len(outputs) != 1):
                raise ArtifactError(f"{PROGRAM}: constant {method} is missing: export again")
            values[name] = tuple(outputs) if name == "eos_ids" else outputs[0]
        return cls(**values)


def constant_methods() -> dict[str, str]:
    """Return the name of the constant method of each field of `Constants`."""
    names = {field.name: f"get_{field.name}" for field in fields(Constants)}
    return names | {"kv_cache": "use_kv_cache"}
