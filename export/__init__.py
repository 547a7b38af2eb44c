"""How checkpoints become one artifact."""

from eagle_aot.export.draft_checkpoint import load_draft
from eagle_aot.export.pipeline import ExportOptions, export_speculator, run_check, run_export
from eagle_aot.export.source import Source
from eagle_aot.export.speculator import Eagle3Speculator

__all__ = [
    "Eagle3Speculator",
    "ExportOptions",
    "Source",
    "export_speculator",
    "load_draft",
    "run_check",
    "run_export",
]
