"""The host memory of this process."""

import resource
import sys


def host_peak_bytes() -> int:
    """Largest resident set of this process so far (Linux reports KiB, macOS bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
