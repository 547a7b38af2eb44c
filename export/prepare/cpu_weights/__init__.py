"""Weights in fewer bits for XNNPACK's dynamically quantised linears: a pair in, another one out."""

from eagle_aot.common.errors import SettingError
from eagle_aot.export.lowering.backend import CUDA

FLOAT32, INT8, INT4 = "float32", "int8", "int4"
CPU_WEIGHTS = (FLOAT32, INT8, INT4)
"""What `--cpu-weights` takes."""


def check_cpu_weights(kind: str, backend: str) -> None:
    """Raise SettingError for an unknown kind, and for another than float32 on a GPU."""
    if kind not in CPU_WEIGHTS:
        raise SettingError(f"--cpu-weights {kind}: must be one of {', '.join(CPU_WEIGHTS)}")
    if kind != FLOAT32 and backend == CUDA:
        raise SettingError(
            f"--cpu-weights {kind}: is for XNNPACK; leave it out for cuda, whose weights are INT4"
        )
