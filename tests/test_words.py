"""Words that this project does not use, in prose and in code.

Markdown is read without code, quotations and links' addresses. Of Python files in the folders of
`PYTHON` docstrings, comments, names and the help texts of options are read.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BANNED = (
    "behind",
    "told",
    "asked",
    "nobody",
    "whoever",
    "go on",
    "goes on",
    "gone on",
    "thought over",
    "sooner",
    "of which",
)
IN_PROSE = (*BANNED, "asks", "beside", "oftener", "tells")
"""Markdown is held to a few more."""

MARKDOWN = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "benchmarks/results/INDEX.md")
PYTHON = (
    "export",
    "lab",
    "runtime_runner",
    "scripts",
    "src/eagle_aot",
    "targets",
    "tests",
    "triton_kernels",
)
"""Folders and files whose Python has none. `scan` lists what another folder would have to lose."""

HELP = {"help", "short_help", "epilog"}

Line = tuple[int, str]
"""The number of a line, from 1 on, and words of it."""


def markdown_prose(text: str) -> Iterator[Line]:
    """Yield the lines of a page without code, quotations and the addresses of links."""
    text = re.sub(r"^```.*?^```", _blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\"[^\"\n]*\"|\]\([^)]*\)|<[^>\n]*>", _blank, text)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith(">"):
            yield number, line


def python_docstrings(text: str) -> Iterator[Line]:
    """Yield the docstrings of modules, classes, functions and constants, without code in them."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant):
                yield from _lines(value)


def python_comments(text: str) -> Iterator[Line]:
    """Yield the comments."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _without_code(token.string)


def python_names(text: str) -> Iterator[Line]:
    """Yield every name that is bound or used, with its words apart: `goes_on` is "goes on"."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", token.string)
            yield token.start[0], words.replace("_", " ")


def python_help(text: str) -> Iterator[Line]:
    """Yield the texts of `help=` and the like, which click prints."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg in HELP:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant):
                    yield from _lines(part)


PYTHON_EXTRACTORS = (python_docstrings, python_comments, python_names, python_help)


def scan(
    roots: tuple[str, ...],
    suffix: str,
    extractors: tuple[Callable[[str], Iterator[Line]], ...],
    banned: tuple[str, ...],
) -> list[str]:
    """Return "file:line: word" for each banned word in the files of `roots`, sorted."""
    pattern = re.compile(rf"\b({'|'.join(banned)})\b", re.IGNORECASE)
    anywhere = re.compile("|".join(banned).replace(" ", "[ _]?"), re.IGNORECASE)
    hits = set[str]()
    for path in _files(roots, suffix):
        text = path.read_text(encoding="utf-8")
        if not anywhere.search(text):
            continue  # parsing every file would take long
        for extract in extractors:
            for number, words in extract(text):
                for hit in pattern.findall(words):
                    hits.add(f"{path.relative_to(ROOT)}:{number}: {hit.lower()}")
    return sorted(hits)


def _files(roots: tuple[str, ...], suffix: str) -> Iterator[Path]:
    for root in roots:
        path = ROOT / root
        assert path.exists(), root
        yield from path.rglob(f"*{suffix}") if path.is_dir() else [path]


def _lines(constant: ast.Constant) -> Iterator[Line]:
    if isinstance(constant.value, str):
        for offset, line in enumerate(_without_code(constant.value).splitlines()):
            yield constant.lineno + offset, line


def _without_code(text: str) -> str:
    return re.sub(r"`[^`]*`|\"[^\"\n]*\"", _blank, text)


def _blank(match: re.Match[str]) -> str:
    """Keep the line breaks, so that lines keep their numbers."""
    return "\n" * match.group().count("\n")


def test_markdown_has_no_banned_words() -> None:
    assert scan(MARKDOWN, ".md", (markdown_prose,), IN_PROSE) == []


def test_python_has_no_banned_words() -> None:
    assert scan(PYTHON, ".py", PYTHON_EXTRACTORS, BANNED) == []


def test_markdown_is_read_without_code_quotations_and_addresses() -> None:
    page = 'a\n```bash\ntold\n```\n`told` "told" [b](told.md)\n> told\ntold c\n'
    assert [(n, line.split()) for n, line in markdown_prose(page) if "told" in line] == [
        (7, ["told", "c"])
    ]


@pytest.mark.parametrize(("extract", "found"), [
    (python_docstrings, [(1, "told one"), (4, "told two")]),
    (python_comments, [(3, "# told three")]),
    (python_names, [(2, "told four"), (5, "Told Five")]),
    (python_help, [(6, "told six")]),
])  # fmt: skip
def test_python_is_read_by_its_parts(
    extract: Callable[[str], Iterator[Line]], found: list[Line]
) -> None:
    source = '"""told one `told`"""\ndef told_four():\n    # told three\n    """told two"""\n'
    source += 'class ToldFive: ...\noption(help="told six")\n'
    assert [(n, line.strip()) for n, line in extract(source) if "told" in line.lower()] == found
