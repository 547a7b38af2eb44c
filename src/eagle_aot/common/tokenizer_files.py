"""A tokenizer's files, before a library interprets them.

transformers opens files that tokenizer_config.json names wherever they are (up to 5.23 at least
`fast_tokenizer_files`, before 5 any vocabulary), offers to run code that `auto_map` names, and
reads a directory's config.json and additional templates unasked.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle_aot.artifact import tokenizer_files
from eagle_aot.common.strict_json import read_object

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
"""Whose keys become arguments of the tokenizer's class."""

CODE = ("auto_map", "init_inputs")
"""Keys that choose code, or its arguments by position."""

FILES = ("_file", "_files")
"""How keys that name files end."""


def tokenizer_problem(directory: Path) -> str:
    """Why a tokenizer must not be loaded: it cannot be read, or names files or code of its own.

    Empty where nothing is wrong.
    """
    for name in SETTINGS:
        path = directory / name
        if not path.is_file():
            continue
        try:
            settings = read_object(path)
        except (OSError, ValueError) as error:
            return f"{path}: cannot be read ({error})"
        for key, value in settings.items():
            if value is not None and (key in CODE or key.endswith(FILES)):
                what = "code" if key in CODE else "a file"
                return f"{path}: {key!r} names {what}, and no tokenizer here may: remove the key"
    return ""


@contextmanager
def alone(directory: Path) -> Iterator[Path]:
    """A directory of copies of the tokenizer's files and nothing else, for the time of a load."""
    with tempfile.TemporaryDirectory(prefix="tokenizer-") as copies:
        for path in tokenizer_files(directory):
            shutil.copyfile(path, os.path.join(copies, path.name))
        yield Path(copies)
