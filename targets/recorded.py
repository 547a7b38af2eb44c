"""How long exports of registered targets took, from files in benchmarks/results."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordedExport:
    """An export's seconds on a device, and the results file that has them."""

    backend: str
    device: str
    seconds: int
    source: str

    def __str__(self) -> str:
        return f"{self.seconds} s on {self.device} ({self.source})"


H100 = "one NVIDIA H100 80GB"
RECORDED_EXPORTS = {
    "gemma4-31b": (
        RecordedExport("cuda", H100, 356, "2026-11-26-h100-check-parts.txt"),
        RecordedExport("cuda", H100, 512, "2026-11-25-h100-check.txt"),
        RecordedExport("cuda", H100, 576, "2026-11-24-h100-31b-two-heads.txt"),
    ),
    "gemma4-tiny": (
        RecordedExport("xnnpack", "two CPU cores", 32, "2026-11-25-cpu-start-export.txt"),
    ),
}
