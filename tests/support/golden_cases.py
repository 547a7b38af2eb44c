"""Expected tensors computed by independent implementations (see data/golden/README.md)."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def golden_case(name: str) -> tuple[Path, dict[str, Tensor]]:
    """Return a checkpoint's directory and the case's tensors, `input.*` and `expected.*`."""
    directory = GOLDEN / name
    return directory, load_file(directory / "case.safetensors")


def relative_error(output: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm of `expected`; both have one shape."""
    assert output.shape == expected.shape, (output.shape, expected.shape)
    exact = expected.double()
    return float((output.double() - exact).norm() / exact.norm())
