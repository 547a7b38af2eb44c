"""The formats that the linears of a checkpoint will have, before any of them is read.

A config says how its linears are quantised. Where the weights are there, too, their tensors' names
and types say it for each one: some linears of a quantised checkpoint are dense, and a GGUF file
mixes types.
"""

from collections.abc import Sequence
from pathlib import Path

from eagle_aot.common.errors import CheckpointNotFoundError
from eagle_aot.targets.checkpoint import (
    BITS_KEYS,
    GROUP_KEYS,
    Checkpoint,
    weight_files,
)
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.weights import (
    GROUP_SIZE,
    LAYERS,
    LM_HEAD,
    WEIGHT,
    LinearFormats,
)
from eagle_aot.targets.int4.compressed_tensors import LINEAR, scheme_of
from eagle_aot.targets.int4.formats import COMPRESSED_TENSORS, IN_THE_FILE, method_of
from eagle_aot.targets.int4.weight import Int4Format
from eagle_aot.targets.stored_matrix import INT4, INT8, StoredMatrix, stored_matrices

PICKLED = ".bin"
"""Suffix of files that are only read as a whole."""


def matrices_of(directory: Path) -> list[StoredMatrix]:
    """List the matrices of the checkpoint in a directory; none if its weights are missing or are
    pickled. Raises CheckpointError for damage, UnsupportedError for what is not read."""
    try:
        is_pickled = any(path.suffix == PICKLED for path in weight_files(directory))
        return [] if is_pickled else stored_matrices(Checkpoint(directory))
    except CheckpointNotFoundError:
        return []


def linear_formats(
    quantization: ConfigSection, matrices: Sequence[StoredMatrix], group_size: int | None = None
) -> LinearFormats:
    """Return the formats of linears, by a config's section on quantization and the matrices that
    are stored, as far as they are known.

    With `group_size` dense linears of layers will be quantised to INT4 in such groups. Raises
    UnsupportedError for a quantisation that is not read, CheckpointError for values of other types.
    """
    stated = stated_format(quantization)
    by_name = {matrix.name.removesuffix(WEIGHT): matrix for matrix in matrices}
    columns = GROUP_SIZE if stated is None else stated.group_size

    def format_of(name: str) -> Int4Format | None:
        in_layers = name.startswith(LAYERS)
        kept = stated if in_layers else None
        if name in by_name:
            digits = {INT4: 1, INT8: 2}.get(by_name[name].loaded_as)
            kept = None if digits is None else Int4Format(columns, digits)
        requested = Int4Format(group_size) if group_size and in_layers else None
        return kept or requested

    return format_of


def has_own_table(matrices: Sequence[StoredMatrix]) -> bool:
    """Whether a quantised output table is stored, which logits use even if the config ties it."""
    return any(m.name == LM_HEAD and m.is_quantised for m in matrices)


def stated_format(quantization: ConfigSection) -> Int4Format | None:
    """Return what a config's section on quantization says of its linears in general; None for an
    empty one. Raises UnsupportedError for what is not read, CheckpointError for other types."""
    method = method_of(quantization)
    if method is None:
        return None
    if method == IN_THE_FILE:
        return Int4Format(GROUP_SIZE)
    bits, group = quantization.any_of(BITS_KEYS, 4), quantization.any_of(GROUP_KEYS, -1)
    if method == COMPRESSED_TENSORS:
        weights = scheme_of(quantization, LINEAR)
        bits, group = weights.values.get("num_bits", 4), weights.values.get("group_size")
    return Int4Format(group if type(group) is int else -1, digits=2 if bits == 8 else 1)
