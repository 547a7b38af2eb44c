"""How the matrices of a decoder are stored and held, told without reading them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import CODES_PER_WORD, LAYERS, LM_HEAD, WEIGHT
from eagle_aot.targets.int4.formats import Format, format_of

TABLE = "embed_tokens.weight"
INT4, INT8, DENSE = "int4", "int8", "dense"
HALF = 2  # bytes; in fewer an element was quantised


@dataclass(frozen=True, slots=True)
class Held:
    """A linear or a table: what its file calls its format, how we hold it, both sizes.

    `bytes` are those of the file.
    """

    name: str
    kind: str
    held: str
    bytes: int
    elements: int

    @property
    def is_linear(self) -> bool:
        """Whether it is a decoder layer's, not a table."""
        return self.name not in (LM_HEAD, TABLE)

    @property
    def was_quantised(self) -> bool:
        """Whether its file has fewer than 16 bits for an element."""
        return self.bytes < HALF * self.elements


def held_matrices(checkpoint: Checkpoint) -> list[Held]:
    """Linears of all layers, the table of embeddings, and the output table where it is stored.

    Names are those in our decoders. Raises CheckpointError, UnsupportedError for a quantisation
    that is not read.
    """
    layout = format_of(checkpoint)
    prefix = next((n.removesuffix(TABLE) for n in checkpoint.names() if n.endswith(TABLE)), "")
    found = list(_plain(checkpoint, prefix))
    return found if layout is None else [*found, *_in_parts(checkpoint, prefix, layout)]


def _plain(checkpoint: Checkpoint, prefix: str) -> Iterator[Held]:
    """Those that are one tensor."""
    for name in checkpoint.names():
        own = name.removeprefix(prefix)
        is_linear = name.startswith(prefix + LAYERS) and name.endswith(WEIGHT)
        if not is_linear and own not in (TABLE, LM_HEAD):
            continue
        shape, stored = checkpoint.shape(name), checkpoint.stored(name)
        if len(shape) == 2:
            held = INT4 if stored.is_int4 and own != TABLE else DENSE
            yield Held(own, stored.kind, held, stored.bytes, shape.numel())


def _in_parts(checkpoint: Checkpoint, prefix: str, layout: Format) -> Iterator[Held]:
    """Those that are several tensors, as `quantization_config` says."""
    kind = checkpoint.quantization.text("quant_method")
    codes = f".{layout.suffixes[0]}"
    for name in checkpoint.names():
        if not name.startswith(prefix + LAYERS) or not name.endswith(codes):
            continue
        module = name.removesuffix(codes)
        parts = [f"{module}.{suffix}" for suffix in layout.suffixes]
        size = sum(checkpoint.stored(part).bytes for part in parts if part in checkpoint)
        elements = CODES_PER_WORD * checkpoint.shape(name).numel()
        yield Held(module.removeprefix(prefix) + WEIGHT, kind, INT4, size, elements)


def counted(matrices: Iterable[Held]) -> dict[str, int]:
    """How many are held in which format."""
    found = dict.fromkeys((INT4, INT8, DENSE), 0)
    for matrix in matrices:
        found[matrix.held] += 1
    return found
