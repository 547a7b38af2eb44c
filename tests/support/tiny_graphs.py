"""The traced methods of the shipped geometry, whose weights are not there."""

from collections.abc import Mapping
from functools import cache

from torch.export import ExportedProgram

from eagle_aot.export import ExportOptions, Source, run_check


@cache
def tiny_graphs(
    backend: str = "cuda", attention: str | None = None
) -> Mapping[str, ExportedProgram]:
    """By the names of the methods; traced once, for tests that only read them."""
    source = Source.find("gemma4-tiny", None, None, "dummy")
    options = ExportOptions(backend=backend, attention=attention, max_seq_len=128, max_prefill=72)
    return run_check(source, options)
