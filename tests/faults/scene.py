"""A directory with fresh copies of real inputs, in which one fault is made."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_aot.artifact import MANIFEST, PROGRAM, file_record
from eagle_aot.targets.registry import TINY_DIR

QUESTION = "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?"
SMALL = Path(__file__).resolve().parents[1] / "data" / "fuzz" / "seeds"


@dataclass(frozen=True)
class Scene:
    """Everything of one row lies below `directory`; `good` is an artifact that works."""

    directory: Path
    good: Path

    @property
    def marker(self) -> Path:
        """A file that code from a hostile file would make, were it run."""
        return self.directory / "executed"

    def artifact(self) -> Path:
        """A copy of the good artifact, which shares the files that are not changed."""
        return Path(shutil.copytree(self.good, self.directory / "artifact", copy_function=os.link))

    def target(self) -> Path:
        """A copy of the shipped target."""
        return Path(shutil.copytree(TINY_DIR / "target", self.directory / "target"))

    def head(self) -> Path:
        """A copy of the shipped draft head."""
        return Path(shutil.copytree(TINY_DIR / "head", self.directory / "head"))

    def prompts(self, *lines: str | bytes) -> Path:
        """A file of prompts."""
        encoded = [line if isinstance(line, bytes) else line.encode() for line in lines]
        return write(self.directory / "prompts.jsonl", b"\n".join(encoded))


def write(path: Path, content: bytes) -> Path:
    """A new file in the place of one that others may share."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path


def flip(path: Path, place: float) -> None:
    """Flip a bit at a share of the file's length."""
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x10
    write(path, bytes(content))


def cut(path: Path, share: float) -> None:
    """Keep the first part of a file."""
    content = path.read_bytes()
    write(path, content[: int(share * len(content))])


def blank(path: Path) -> None:
    """Zeros over the first bytes, which say what a file is."""
    write(path, bytes(64) + path.read_bytes()[64:])


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of the object in a JSON file; a nested model's where there is one."""
    stored = json.loads(path.read_bytes())
    section = stored.get("text_config", stored.get("transformer_layer_config", stored))
    section.update(changes)
    write(path, json.dumps(stored).encode())


def edit_part(path: Path, part: str, **changes: Any) -> None:
    """Set keys of an object within the object in a JSON file."""
    stored = json.loads(path.read_bytes())
    edit_json(path, **{part: stored[part] | changes})


def rehash(artifact: Path, *names: str) -> None:
    """Let the manifest agree with files that were changed: a fault of whoever wrote both."""
    manifest = artifact / MANIFEST
    stored = json.loads(manifest.read_bytes())
    for name in names or (PROGRAM,):
        record = file_record(artifact / name)
        stored["files"][name] = {"bytes": record.bytes, "sha256": record.sha256}
    write(manifest, json.dumps(stored).encode())
