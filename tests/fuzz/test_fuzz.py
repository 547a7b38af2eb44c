"""Seeds are read, files that failed once are refused, and so is any damage that is not harmless."""

import ctypes
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.campaign import cases, is_campaign
from fuzz.damage import damaged_folder
from fuzz.readers import READERS
from fuzz.sandbox import READ, REFUSED, outcome, outcome_apart

FUZZ = Path(__file__).resolve().parents[1] / "data" / "fuzz"
SEEDS, CASES = FUZZ / "seeds", FUZZ / "cases"
FINDINGS = Path("fuzz-findings")
KNOWN = sorted(path for path in CASES.glob("*/*") if path.is_dir())


@pytest.mark.parametrize("reader", READERS)
def test_seeds_are_read(reader: str) -> None:
    assert outcome(READERS[reader], SEEDS / reader) == READ


@pytest.mark.parametrize("case", KNOWN, ids=lambda path: path.name)
def test_files_that_failed_once_are_refused(case: Path, tmp_path: Path) -> None:
    reader = case.parent.name
    shutil.copytree(SEEDS / reader, tmp_path, dirs_exist_ok=True)
    shutil.copytree(case, tmp_path, dirs_exist_ok=True)
    assert outcome(READERS[reader], tmp_path) == REFUSED


@pytest.fixture
def outcomes() -> Iterator[list[str]]:
    """The outcomes of the damaged files of one reader."""
    outcomes: list[str] = []
    yield outcomes
    assert REFUSED in outcomes


@pytest.mark.parametrize("reader", READERS)
@cases(suite=12, campaign=1000)
@given(data=st.data())
def test_damage_is_refused_or_harmless(
    reader: str, data: st.DataObject, outcomes: list[str], tmp_path: Path
) -> None:
    """A campaign reads in processes that may die."""
    name, content = data.draw(damaged_folder(SEEDS / reader))
    directory = tmp_path / "case"
    shutil.rmtree(directory, ignore_errors=True)  # an earlier case may still have its file mapped
    shutil.copytree(SEEDS / reader, directory)
    (directory / name).unlink()
    (directory / name).write_bytes(content)
    outcomes.append((outcome_apart if is_campaign() else outcome)(READERS[reader], directory))
    if outcomes[-1] not in (READ, REFUSED):
        keep(FINDINGS / reader, name, content, outcomes[-1])
        pytest.fail(f"{FINDINGS / reader / name}: {outcomes[-1]}", pytrace=False)


def keep(directory: Path, name: str, content: bytes, error: str) -> None:
    """Write a finding to disk; a smaller file that Hypothesis finds replaces it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / name).write_bytes(content)
    (directory / "error.txt").write_text(error + "\n")


def test_seeds_cover_every_reader() -> None:
    assert set(READERS) == {path.name for path in SEEDS.iterdir()}
    assert sum(f.stat().st_size for f in FUZZ.rglob("*") if f.is_file()) < 2e5


@pytest.mark.parametrize(("reader", "expected"), [
    (lambda directory: ctypes.string_at(0), "died with -11"),
    (lambda directory: time.sleep(9), "hangs"),
    (lambda directory: bytes(2**36), "MemoryError at test_fuzz.py"),
    (lambda directory: None, READ),
])  # fmt: skip
def test_a_reader_that_dies_is_a_finding(reader: object, expected: str, tmp_path: Path) -> None:
    assert callable(reader)
    assert outcome_apart(reader, tmp_path, seconds=0.3).startswith(expected)
