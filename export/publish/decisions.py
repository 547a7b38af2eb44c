"""What an export decided, and by what: for its manifest."""

from collections.abc import Mapping
from typing import Any

from torch.export import ExportedProgram

from eagle_aot.artifact import CacheBytes
from eagle_aot.export.loading.load import LoadedPair
from eagle_aot.export.lowering.backend import DTYPES
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.attention import PROMPT, SPLITK, STOCK
from eagle_aot.export.publish.kernel_choices import kernel_choices
from eagle_aot.targets.images import SOFT_TOKENS


def describe_decisions(
    loaded: LoadedPair,
    backend: str,
    methods: Mapping[str, MethodSpec],
    programs: Mapping[str, ExportedProgram],
    sequences: int,
) -> dict[str, Any]:
    """Every decision of an export as JSON; `programs` are its methods before lowering, and
    `sequences` those its caches hold."""
    return {
        "dtype": str(DTYPES[backend]).removeprefix("torch."),
        **loaded.reading,
        "linears": loaded.linears,
        "attention": {name: attention(method) for name, method in methods.items()},
        "caches": cache_bytes(methods, sequences).to_json(),
        "kernels": {name: kernel_choices(program) for name, program in programs.items()},
        **tower(loaded.pair),
    }


def tower(pair: Pair) -> dict[str, Any]:
    """What reading a picture costs, where the target reads some."""
    if pair.vision is None:
        return {}
    operations = {str(rows): pair.vision.config.operations(rows) for rows in SOFT_TOKENS}
    parameters = sum(tensor.numel() for tensor in pair.vision.parameters())
    return {"tower": {"parameters": parameters, "operations": operations}}


def attention(method: MethodSpec) -> str:
    """What a method reads caches with."""
    own = SPLITK if method.few_rows else PROMPT
    return own if method.splits_keys else STOCK


def cache_bytes(methods: Mapping[str, MethodSpec], sequences: int) -> CacheBytes:
    """Of all sequences together and of each, in bytes."""
    caches = {
        name: buffer.nbytes
        for method in methods.values()
        for name, buffer in method.module.named_buffers()
        if name in method.writes
    }
    target = sum(size for name, size in caches.items() if name.startswith("target."))
    total = sum(caches.values())
    return CacheBytes(
        bytes=total,
        bytes_of_a_sequence=total // sequences,
        target_bytes_of_a_sequence=target // sequences,
        draft_bytes_of_a_sequence=(total - target) // sequences,
    )
