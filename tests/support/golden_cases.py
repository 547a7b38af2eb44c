"""Numbers made by independent implementations (see data/golden/README.md)."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def golden_case(name: str) -> tuple[Path, dict[str, Tensor]]:
    """A checkpoint's directory and the case's tensors, `input.*` and `expected.*`."""
    directory = GOLDEN / name
    return directory, load_file(directory / "case.safetensors")


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    wanted = expected.double()
    return float((found.double() - wanted).norm() / wanted.norm())
