"""Damage to files: bits, lengths, cuts and splices, and structure where the format is known."""

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Bytes = st.SearchStrategy[bytes]

EXTREMES = st.sampled_from(
    [
        (value % 2 ** (8 * width)).to_bytes(width, "little")
        for width in (1, 2, 4, 8)
        for value in (0, 1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), -1, -2, 2**60)
    ]
)
ODD_NUMBERS = st.sampled_from([b"\xc0\x7f", b"\x80\x7f", b"\x00\x7c", b"\xff\xff"]) | EXTREMES
"""NaN and infinity in bfloat16 and float16, and extreme integers."""
ODD_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(0, -1, 1, 2, 3, 7, 2**31, 2**40, 2**63, 10**9, 10**30, -(2**63)),
        *(0.5, -0.5, 1e-320, 1e308, float("nan"), float("inf")),
        *(None, True, False, "", "x", "\0", "\ud800", "../x", "9" * 5000),
        *([], {}, [[]], [None], {"": None}),
    ]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
DEEP = 5000  # levels of nesting, more than a parser's stack may hold


@st.composite
def damaged_folder(draw: st.DrawFn, folder: Path) -> tuple[str, bytes]:
    """The name of one file of a folder, and what is now in it."""
    path = draw(st.sampled_from(sorted(folder.iterdir())))
    other = draw(st.sampled_from(sorted(p for p in folder.parent.rglob("*") if p.is_file())))
    content = path.read_bytes()
    blind = damaged_bytes(content, other.read_bytes())
    formats = {".json": damaged_json, ".safetensors": damaged_safetensors, ".bin": damaged_pickle}
    known = formats.get(path.suffix)
    return path.name, draw(blind if known is None else st.one_of(*3 * [known(content)], blind))


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes, other: bytes) -> bytes:
    """One to four changes that know nothing of the format, early in the file more often than
    late: headers and lengths are there."""
    for _ in range(draw(st.integers(1, 4))):
        early = st.integers(0, min(len(content), 64))
        place = draw(early | st.integers(0, len(content)))
        extreme, bit = draw(EXTREMES), 1 << draw(st.integers(0, 7))
        head, tail = content[:place], content[place:]
        changes = (
            head,
            head + extreme + tail,
            head + tail[len(extreme) :],
            head + extreme + tail[len(extreme) :],
            head + other[place % (len(other) + 1) :],
            content + bytes(len(extreme)),
            head + bytes(byte ^ bit for byte in tail[:1]) + tail[1:],
        )
        content = draw(st.sampled_from(changes))
    return content


@st.composite
def damaged_json(draw: st.DrawFn, content: bytes) -> bytes:
    """What is parsed well and means nonsense, or is nested too deeply."""
    value = json.loads(content)
    for _ in range(draw(st.integers(1, 4))):
        value = draw(changed(value))
    depth = DEEP if draw(st.integers(0, 99)) == 99 else 0
    return b"[" * depth + json.dumps(value).encode() + b"]" * depth


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A copy with one change somewhere in the tree."""
    within = draw(st.integers(0, 6)) > 0
    if isinstance(value, dict) and value and within:
        return draw(changed_object(value))
    if isinstance(value, list) and value and within:
        at = draw(st.integers(0, len(value) - 1))
        inner = changed(value[at]).map(lambda new: [*value[:at], new, *value[at + 1 :]])
        return draw(inner | st.just([*value[:at], *value[at + 1 :]]) | st.just(3 * value))
    if isinstance(value, str) and value[:1] in ("{", "[") and within:
        return draw(damaged_text(value))
    if isinstance(value, int | float) and within:
        return value + draw(st.sampled_from((-1, 1, 8, -value, value)))
    return draw(ODD_VALUES | JSON | st.sampled_from(([value], {"x": value}, str(value))))


def changed_object(value: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """One entry changed, moved, renamed, left out, or given another's value."""
    key = st.sampled_from(list(value))
    rest = {name: {n: v for n, v in value.items() if n != name} for name in value}
    ends = st.sampled_from(("x", ".0", "\0", ".weight"))
    inner = key.flatmap(lambda k: changed(value[k]).map(lambda new: {**value, k: new}))
    return st.one_of(
        key.map(rest.__getitem__),
        st.builds(lambda k, end: {**rest[k], k + end: value[k]}, key, ends),
        st.builds(lambda k, other: {**value, k: value[other]}, key, key),
        st.builds(lambda k, other: {**value, other + "2": value[k]}, key, key),
        *4 * [inner],
    )


def damaged_text(text: str) -> st.SearchStrategy[str]:
    """JSON within a string, as torchao keeps it."""
    try:
        return changed(json.loads(text)).map(json.dumps)
    except ValueError:
        return st.just(text[1:])


@st.composite
def damaged_safetensors(draw: st.DrawFn, content: bytes) -> bytes:
    """Another header, of the right length, before the same data; or an odd number in the data."""
    (length,) = struct.unpack_from("<Q", content)
    text, data = content[8 : 8 + length], content[8 + length :]
    if draw(st.booleans()):
        text = draw(damaged_json(text))
    else:
        place, odd = 2 * draw(st.integers(0, len(data) // 2)), draw(ODD_NUMBERS)
        data = data[:place] + odd + data[place + len(odd) :]
    return struct.pack("<Q", len(text)) + text + data


@st.composite
def damaged_pickle(draw: st.DrawFn, content: bytes) -> bytes:
    """A zip file, whole and with right checksums, in which one member is changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as stored:
        members = {name: stored.read(name) for name in stored.namelist()}
    pickles = [name for name in members if name.endswith("data.pkl")]
    name, other = draw(st.sampled_from([*4 * pickles, *members])), draw(st.sampled_from([*members]))
    members[name] = draw(damaged_bytes(members[name], members[other]))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as damaged:
        for member, data in members.items():
            damaged.writestr(member, data)
    return written.getvalue()
