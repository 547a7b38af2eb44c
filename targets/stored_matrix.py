"""How the matrices of a decoder are stored and will be loaded, without reading them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import (
    HALF_BYTES,
    KV_SCALES,
    LAYERS,
    LM_HEAD,
    TABLE,
    WEIGHT,
)
from eagle_aot.targets.int4.formats import QuantFormat, format_of

KV_SCHEME = "kv_cache_scheme"
INT4, INT8, DENSE = "int4", "int8", "dense"


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A linear or a table of a checkpoint.

    `file_format` is the file's own name of its format, `loaded_as` is INT4, INT8 or DENSE, and
    `bytes` is its size in the file.
    """

    name: str
    file_format: str
    loaded_as: str
    bytes: int
    elements: int

    @property
    def is_linear(self) -> bool:
        """Whether it belongs to a decoder layer and is not a table."""
        return self.name not in (LM_HEAD, TABLE)

    @property
    def is_quantised(self) -> bool:
        """Whether its file has fewer than 16 bits per element."""
        return self.bytes < HALF_BYTES * self.elements


def stored_matrices(checkpoint: Checkpoint) -> list[StoredMatrix]:
    """List the linears of all layers, the embedding table, and the output table if it is stored.

    Names are those in our decoders. Raises CheckpointError, and UnsupportedError for a
    quantisation that is not read.
    """
    layout = format_of(checkpoint)
    prefix = next((n.removesuffix(TABLE) for n in checkpoint.names() if n.endswith(TABLE)), "")
    matrices = list(_single_tensors(checkpoint, prefix))
    if layout is None:
        return matrices
    return [*matrices, *_several_tensors(checkpoint, prefix, layout)]


def _single_tensors(checkpoint: Checkpoint, prefix: str) -> Iterator[StoredMatrix]:
    """Yield the matrices that are stored as one tensor."""
    for tensor_name in checkpoint.names():
        name = tensor_name.removeprefix(prefix)
        is_linear = tensor_name.startswith(prefix + LAYERS) and tensor_name.endswith(WEIGHT)
        if not is_linear and name not in (TABLE, LM_HEAD):
            continue
        shape, storage = checkpoint.shape(tensor_name), checkpoint.storage(tensor_name)
        if len(shape) == 2:
            loaded_as = INT4 if storage.is_int4 and name != TABLE else DENSE
            elements = shape.numel()
            yield StoredMatrix(name, storage.file_format, loaded_as, storage.bytes, elements)


def _several_tensors(
    checkpoint: Checkpoint, prefix: str, layout: QuantFormat
) -> Iterator[StoredMatrix]:
    """Yield the matrices that are stored as several tensors, in the format `layout`."""
    file_format = checkpoint.quantization.text("quant_method")
    codes, table = f".{layout.suffixes[0]}", LM_HEAD.removesuffix(WEIGHT)
    for tensor_name in checkpoint.names():
        module = tensor_name.removesuffix(codes)
        if module == tensor_name or not module.startswith((prefix + LAYERS, table)):
            continue
        parts = [f"{module}.{suffix}" for suffix in layout.suffixes]
        size = sum(checkpoint.storage(part).bytes for part in parts if part in checkpoint)
        elements = layout.elements(checkpoint, module)
        loaded_as = INT4 if layout.bits(checkpoint, module) == 4 else INT8
        name = module.removeprefix(prefix) + WEIGHT
        yield StoredMatrix(name, file_format, loaded_as, size, elements)


def count_by_format(matrices: Iterable[StoredMatrix]) -> dict[str, int]:
    """Count how many matrices are loaded as INT4, INT8 and DENSE."""
    counts = dict.fromkeys((INT4, INT8, DENSE), 0)
    for matrix in matrices:
        counts[matrix.loaded_as] += 1
    return counts


def ignored_line(checkpoint: Checkpoint) -> str:
    """Return what a checkpoint stores or says of a quantized KV cache; empty if nothing."""
    scales = [name for name in checkpoint.names() if name.endswith(KV_SCALES)]
    if not scales and not checkpoint.quantization.has(KV_SCHEME):
        return ""
    kinds = ", ".join(sorted({name.rpartition(".")[2] for name in scales}))
    what = f"{len(scales)} scales of a quantized KV cache ({kinds})" if scales else KV_SCHEME
    return f"ignored: {what}, the KV cache here is not quantized"
