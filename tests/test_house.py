"""What `scripts/house.py` counts stays at or below its limits."""

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HOUSE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "house.py"))
LIMITS: dict[str, int] = HOUSE["LIMITS"]


@cache
def measured() -> dict[str, int | list[str]]:
    counts: dict[str, int | list[str]] = HOUSE["measure"]()
    return counts


@pytest.mark.parametrize("name", LIMITS)
def test_count_does_not_exceed_its_limit(name: str) -> None:
    value = measured()[name]
    count = value if isinstance(value, int) else len(value)
    assert count <= LIMITS[name], value
