"""Describe a target's checkpoint: for `eagle-inspect target`, and in one line at an export."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import torch

from eagle_aot.common.errors import CheckpointError
from eagle_aot.common.text import one_line, printable
from eagle_aot.export.loading.provenance import Provenance, configured_eos_ids
from eagle_aot.export.spec import ExportSpec
from eagle_aot.targets import model_type
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import LM_HEAD
from eagle_aot.targets.int4.quantisers import QUANTISERS
from eagle_aot.targets.stored_matrix import (
    DENSE,
    INT4,
    INT8,
    StoredMatrix,
    count_by_format,
    ignored_line,
    stored_matrices,
)

SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size"),
)
CONTEXT = "max_position_embeddings"
SPELT = {INT4: "INT4", INT8: "INT8", DENSE: "dense"}
MB = 1e6

Description = dict[str, Any]


def describe_target(path: Path) -> Description:
    """Return a description as JSON; of weights only names, shapes and formats are read.

    Sizes that the config omits are null. Raises CheckpointError and UnsupportedError.
    """
    checkpoint, provenance = Checkpoint(path), Provenance(path, None, is_dummy=False)
    family, config = model_type(checkpoint.config), checkpoint.config
    text = config.section("text_config") if config.has("text_config") else config
    matrices = stored_matrices(checkpoint)
    return {
        "directory": str(path),
        "files": [file.name for file in checkpoint.files()],
        "model_type": family,
        "sizes": {name: text.count(name) if text.has(name) else None for name in SIZES},
        "context": text.count(CONTEXT) if text.has(CONTEXT) else None,
        "linears": count_by_format(matrix for matrix in matrices if matrix.is_linear),
        "formats": formats(matrices),
        "ignored": ignored_line(checkpoint).removeprefix("ignored: "),
        **_tokenizer(provenance, path),
    }


def formats(matrices: list[StoredMatrix]) -> list[dict[str, Any]]:
    """Return counts and bytes of the matrices by their formats in the file and in memory."""
    groups: defaultdict[tuple[str, str, str], list[StoredMatrix]] = defaultdict(list)
    for matrix in matrices:
        what = "linear" if matrix.is_linear else "table"
        groups[what, matrix.file_format, matrix.loaded_as].append(matrix)
    return [
        {
            "what": what,
            "stored": kind,
            "held": loaded_as,
            "count": len(group),
            "bytes": sum(matrix.bytes for matrix in group),
        }
        for (what, kind, loaded_as), group in sorted(groups.items())
    ]


def _tokenizer(provenance: Provenance, path: Path) -> Description:
    try:
        tokenizer = provenance.tokenizer
        return {
            "stop_ids": list(provenance.eos_ids),
            "tokenizer": "loads",
            "chat_template": tokenizer.has_template,
            "adds_bos": tokenizer.adds_bos,
        }
    except CheckpointError as error:
        return {
            "stop_ids": list(configured_eos_ids(path)),
            "tokenizer": str(error),
            "chat_template": False,
            "adds_bos": False,
        }


def report(description: Description) -> list[str]:
    """Return a description as lines of text."""
    sizes = {
        name: "unsaid" if size is None else size for name, size in description["sizes"].items()
    }
    linears = ", ".join(f"{count} {SPELT[name]}" for name, count in description["linears"].items())
    lines = {
        "model_type": description["model_type"],
        "files": ", ".join(description["files"]),
        "sizes": ", ".join(f"{name} {size}" for name, size in sizes.items()),
        "context": description["context"] or "unsaid",
        "linears": linears,
        "formats": "; ".join(map(_format, description["formats"])),
        "ignored": description["ignored"] or "nothing",
        "stop ids": ", ".join(map(str, description["stop_ids"])) or "none",
        "tokenizer": description["tokenizer"] + (", adds a BOS" if description["adds_bos"] else ""),
        "chat template": "yes" if description["chat_template"] else "none",
    }
    return [printable(f"{topic:<22}{fact}") for topic, fact in lines.items()]


def report_stored(spec: ExportSpec, dtype: torch.dtype) -> None:
    """Print on stderr which quantized matrices of a target the export makes dense, and which
    tensors it ignores."""
    if spec.is_dummy or spec.target_dir is None:
        return
    path = spec.target_dir
    for line in (dense_line(spec, path, dtype), ignored_line(Checkpoint(path))):
        if line:
            click.echo(one_line(line), err=True)


def dense_line(spec: ExportSpec, path: Path, dtype: torch.dtype) -> str:
    """Return which matrices are quantized in the file but not in the export, with both sizes; empty
    if there are none."""
    dense = [
        matrix
        for matrix in stored_matrices(Checkpoint(path))
        if matrix.loaded_as == DENSE and matrix.is_quantised and not _is_quantised(matrix, spec)
    ]
    if not dense:
        return ""
    groups = ", ".join(f"{_counted(group)} in {group['stored']}" for group in formats(dense))
    stored = sum(matrix.bytes for matrix in dense) / MB
    dense_size = sum(matrix.elements for matrix in dense) * dtype.itemsize / MB
    name = str(dtype).removeprefix("torch.")
    return f"held dense: {groups}: {stored:.1f} MB in the file, {dense_size:.1f} MB in {name}"


def _is_quantised(matrix: StoredMatrix, spec: ExportSpec) -> bool:
    if matrix.is_linear:
        return spec.quantize is not None
    return matrix.name == LM_HEAD and spec.table_quant in QUANTISERS


def _format(group: dict[str, Any]) -> str:
    size = f"{group['bytes'] / MB:.1f} MB"
    return f"{_counted(group)} in {group['stored']} ({size}), held {SPELT[group['held']]}"


def _counted(group: dict[str, Any]) -> str:
    count: int = group["count"]
    return f"{count} {group['what']}{'s' if count > 1 else ''}"
