"""Types that many threads are the first to read at once."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from eagle_aot.common.structs import convert

ROOT = Path(__file__).parents[2]
RACE = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import msgspec
from eagle_aot.runtime_runner.serve.api.bodies import decode

sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)

def read(kind):
    barrier.wait()
    decode(b'{"a0": [{"b1": 1}]}', kind, strict=True)

with ThreadPoolExecutor(8) as pool:
    for _ in range(100):
        inner = msgspec.defstruct("Inner", [(f"b{i}", int | None, None) for i in range(20)])
        outer = msgspec.defstruct("Outer", [(f"a{i}", list[inner] | None, None) for i in range(20)])
        list(pool.map(read, [outer] * 8))
"""


def test_threads_read_a_new_type_at_once() -> None:
    """msgspec alone ends the process here each time."""
    subprocess.run([sys.executable, "-c", RACE], check=True)


def test_all_files_describe_what_msgspec_reads() -> None:
    folders = [ROOT / name for name in ("src", "export", "lab", "runtime_runner", "targets")]
    texts = {path: path.read_text() for folder in folders for path in folder.rglob("*.py")}
    assert [p.name for p, text in texts.items() if "msgspec.convert(" in text] == ["structs.py"]
    inspects = re.compile(r"\b(type_info|schema_components|Decoder)\(")
    found = {path.name: text for path, text in texts.items() if inspects.search(text)}
    assert found.keys() == {"app.py", "fields.py", "structs.py"}
    assert all(re.search(r"\bdescribe\(", text) for text in found.values())


class Number(msgspec.Struct):
    value: int


def test_a_value_of_another_type_is_refused() -> None:
    assert convert({"value": 1}, Number) == Number(1)
    assert convert({"1": 2}, dict[int, int], str_keys=True) == {1: 2}
    with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
        convert({"value": "1"}, Number)
