"""A small target that heads are read for."""

from pathlib import Path

import pytest

from eagle_aot.targets import TapTarget, load_target
from support.gemma_oracle import random_gemma, save_text_layout


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Gemma 4 of 4 layers, 32 wide, with 96 tokens."""
    return save_text_layout(random_gemma(), tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="session")
def target(gemma: Path) -> TapTarget:
    return load_target(gemma, 64)
