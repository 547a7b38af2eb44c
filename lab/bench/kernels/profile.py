"""The kernels of a forward: their classes and times. Times are microseconds."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.lab.bench.samples import QUIET
from eagle_aot.runtime_runner.program.executor import Call

REPLAYS = 5
INT4, ATTENTION, DENSE, REST = "INT4 GEMM", "attention", "output table", "rest"
CLASSES = (INT4, ATTENTION, DENSE, REST)
# Inductor names a fused kernel after every operator that it has a part of, views of other results
# included, so only names that are attention's alone decide.
FUSED = re.compile(r"triton_(?!tem)[a-z]{3}_fused")  # pointwise and reductions
FUSED_ATTENTION = re.compile(r"softmax|bmm")
# Other kernels are named after one operator. The first pattern that matches decides.
NAMES = {
    ATTENTION: re.compile(r"sdpa|attention|bmm|softmax|flash|fmha", re.IGNORECASE),
    INT4: re.compile(r"int4|layer_products", re.IGNORECASE),
    DENSE: re.compile(
        r"triton_tem_fused|gemm|gemv|cutlass|nvjet|dense_small_m|digits_k|screen_|rescore_|whole_k",
        re.IGNORECASE,
    ),
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """The launches of one kernel in one forward."""

    name: str
    launches: float
    us: float

    @property
    def mean_us(self) -> float:
        """The mean time of a launch."""
        return self.us / self.launches


@dataclass(frozen=True, slots=True)
class Share:
    """A class of kernels in one forward; `share` is its part of the time of all kernels."""

    name: str
    launches: float
    us: float
    share: float


def class_of(name: str) -> str:
    """Return the class of a kernel, copy or fill."""
    if FUSED.match(name):
        return ATTENTION if FUSED_ATTENTION.search(name) else REST
    return next((kind for kind, names in NAMES.items() if names.search(name)), REST)


def summed(launches: Iterable[tuple[str, float]], forwards: int) -> list[Kernel]:
    """Sum launches (name, us) of equal forwards into the kernels of one, longest first."""
    times: dict[str, list[float]] = defaultdict(list)
    for name, us in launches:
        times[name].append(us)
    kernels = (Kernel(n, len(us) / forwards, sum(us) / forwards) for n, us in times.items())
    return sorted(kernels, key=lambda kernel: -kernel.us)


def shares(kernels: Iterable[Kernel]) -> list[Share]:
    """Return the time of each class, in the order of `CLASSES`."""
    of_class: dict[str, list[Kernel]] = {kind: [] for kind in CLASSES}
    for kernel in kernels:
        of_class[class_of(kernel.name)].append(kernel)
    us = {kind: sum((k.us for k in members), 0.0) for kind, members in of_class.items()}
    total = sum(us.values())
    return [
        Share(
            name=kind,
            launches=sum((k.launches for k in members), 0.0),
            us=us[kind],
            share=us[kind] / total if total else 0.0,
        )
        for kind, members in of_class.items()
    ]


def kernels_of(step: Call) -> list[Kernel]:
    """Return the kernels of one call of `step`, as CUPTI sees them in a few.

    The profiler slows down what comes after it: time first. Raises UnsupportedError where it sees
    no kernels.
    """
    os.environ.setdefault(*QUIET)
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            step()
        torch.cuda.synchronize()
    on_device = (e for e in profiler.events() if e.device_type == DeviceType.CUDA)
    kernels = summed(((e.name, e.time_range.elapsed_us()) for e in on_device), REPLAYS)
    if not kernels:
        raise UnsupportedError("the profiler sees no kernels here: may this process use CUPTI?")
    return kernels
