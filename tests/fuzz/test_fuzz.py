"""Seeds are good, what fuzzing found stays fixed, and no damage of a fixed seed gets through."""

import shutil
from pathlib import Path
from random import Random

import pytest

from eagle_aot.common.errors import EagleError
from fuzz.damage import damaged
from fuzz.readers import READERS

FUZZ = Path(__file__).resolve().parents[1] / "data" / "fuzz"
SEEDS, CASES = FUZZ / "seeds", FUZZ / "cases"
EACH = 12  # damaged files per reader
KNOWN = sorted(path for path in CASES.glob("*/*") if path.is_dir())


@pytest.mark.parametrize("reader", READERS)
def test_seeds_are_good(reader: str) -> None:
    READERS[reader](SEEDS / reader)


@pytest.mark.parametrize("case", KNOWN, ids=lambda path: path.name)
def test_what_was_found_is_refused_in_words(case: Path, tmp_path: Path) -> None:
    reader = case.parent.name
    directory = Path(shutil.copytree(SEEDS / reader, tmp_path / "case"))
    for file in case.iterdir():
        shutil.copyfile(file, directory / file.name)
    with pytest.raises(EagleError):
        READERS[reader](directory)


@pytest.mark.parametrize("reader", READERS)
def test_damage_is_refused_or_harmless(reader: str, tmp_path: Path) -> None:
    random, refused = Random(reader), 0
    for number in range(EACH):
        directory = Path(shutil.copytree(SEEDS / reader, tmp_path / str(number)))
        file = random.choice(sorted(directory.iterdir()))
        content = file.read_bytes()
        file.write_bytes(damaged(file.name, content, content, random))
        try:
            READERS[reader](directory)
        except EagleError:
            refused += 1
    assert refused > 0


def test_seeds_cover_every_reader() -> None:
    assert set(READERS) == {path.name for path in SEEDS.iterdir()}
    assert sum(f.stat().st_size for f in FUZZ.rglob("*") if f.is_file()) < 2e5
