"""The traced methods of the shipped geometry, whose weights are not there."""

from collections.abc import Mapping
from functools import cache

from torch.export import ExportedProgram

from eagle_aot.common.progress import Progress
from eagle_aot.export import ExportSpec, run_check
from eagle_aot.export.resolution import choose_attention


def tiny_graphs(
    backend: str = "cuda", attention: str | None = None
) -> Mapping[str, ExportedProgram]:
    """By the names of the methods; traced once, for tests that only read them."""
    return tiny_check(backend, choose_attention(attention, backend), 1)[0]


@cache
def tiny_check(
    backend: str, attention: str, sequences: int
) -> tuple[Mapping[str, ExportedProgram], Progress]:
    """The same, with caches for so many sequences, and the stages that it took."""
    progress = Progress()
    spec = ExportSpec(
        target_model="gemma4-tiny",
        load_format="dummy",
        backend=backend,
        attention=attention,
        max_seq_len=128,
        max_prefill=72,
        max_batch_size=sequences,
    )
    return run_check(spec, progress), progress
