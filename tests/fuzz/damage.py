"""Damage to files: bits, lengths, cuts and splices, and structure where the format is known."""

import io
import json
import struct
import zipfile
from random import Random

from fuzz.json_damage import damaged_json, damaged_value, dumped

EXTREMES = tuple(
    (value % 2 ** (8 * width)).to_bytes(width, "little")
    for width in (1, 2, 4, 8)
    for value in (0, 1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), -1, -2, 2**60)
)


def damaged(name: str, content: bytes, other: bytes, random: Random) -> bytes:
    """`content` of the file `name`, changed; `other` is a file to splice from."""
    if random.random() < 0.75:
        if name.endswith(".json"):
            return damaged_json(content, random)
        if name.endswith(".safetensors"):
            return damaged_safetensors(content, random)
        if name.endswith(".bin"):
            return damaged_pickle(content, random)
    return damaged_bytes(content, other, random)


def damaged_bytes(content: bytes, other: bytes, random: Random) -> bytes:
    """One to four changes that know nothing of the format."""
    for _ in range(random.choice((1, 1, 2, 4))):
        content = damaged_once(content, other, random)
    return content


def damaged_once(content: bytes, other: bytes, random: Random) -> bytes:
    """One change, early in the file more often than late: headers and lengths are there."""
    place = int(len(content) * random.random() ** random.choice((1, 3)))
    head, tail = content[:place], content[place:]
    extreme = random.choice(EXTREMES)
    match random.randrange(8):
        case 0:
            return head
        case 1:
            return head + extreme + tail
        case 2:
            return head + tail[random.choice((1, 2, 4, 8)) :]
        case 3 | 4:
            return head + extreme + tail[len(extreme) :]
        case 5:
            return head + other[int(len(other) * random.random()) :]
        case 6:
            return content + bytes(random.choice((1, 8, 4096)))
    return head + bytes([byte ^ 1 << random.randrange(8) for byte in tail[:1]]) + tail[1:]


def damaged_safetensors(content: bytes, random: Random) -> bytes:
    """Another header, of the right length, before the same data."""
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    if random.random() < 0.3:
        return with_odd_number(content, 8 + length, random)
    for _ in range(random.choice((1, 1, 2))):
        header = damaged_value(header, random)
    text = dumped(header, random)
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def with_odd_number(content: bytes, start: int, random: Random) -> bytes:
    """NaN, infinity or an extreme integer among the data behind `start`."""
    place = start + 2 * random.randrange(max((len(content) - start) // 2, 1))
    odd = random.choice((b"\xc0\x7f", b"\x80\x7f", b"\x00\x7c", b"\xff\xff", *EXTREMES))
    return content[:place] + odd + content[place + len(odd) :]


def damaged_pickle(content: bytes, random: Random) -> bytes:
    """A zip file, whole and with right checksums, of which one member is changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as stored:
        members = {name: stored.read(name) for name in stored.namelist()}
    pickles = [name for name in members if name.endswith("data.pkl")]
    name = random.choice(pickles if random.random() < 0.8 else list(members))
    members[name] = damaged_bytes(members[name], members[random.choice(list(members))], random)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as changed:
        for member, data in members.items():
            changed.writestr(member, data)
    return written.getvalue()
