"""README and docs/ are short, complete, and their links, figures and commands are right."""

import importlib
import multiprocessing
import os
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from eagle_aot.export import pipeline
from eagle_aot.export.resolution import ResolvedExport
from eagle_aot.lab.training.tiny.stories import final_answer, is_held_out
from eagle_aot.runtime_runner import Runner

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
INDEX = RESULTS / "INDEX.md"
DOCS = sorted(ROOT.glob("docs/*.md"))
PAGES = {
    path: path.read_text(encoding="utf-8")
    for path in (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", INDEX, *DOCS)
}
LONGEST_README, LONGEST_DOCS = 130, 1498  # lines
ANSWERS = {"Ada has 27 marbles": 189, "If Mei owns 7 oranges": 63}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MODULES = {
    "eagle-batch": "eagle_aot.runtime_runner.serve.on_ray.batch",
    "eagle-bench": "eagle_aot.lab.bench.cli",
    "eagle-check": "eagle_aot.lab.checks.cli",
    "eagle-export": "eagle_aot.export.cli",
    "eagle-inspect": "eagle_aot.export.inspect_cli",
    "eagle-run": "eagle_aot.runtime_runner.cli",
    "eagle-serve": "eagle_aot.runtime_runner.serve.cli",
    "eagle-train": "eagle_aot.lab.training.heads.cli",
}
OTHER_PROJECTS = {"lm_eval", "pip"}

FORK = multiprocessing.get_context("fork")
"""For processes that reuse the imports of this one."""


def commands() -> list[str]:
    """Return every line of every block of shell commands, once."""
    blocks = re.findall(r"^```bash\n(.*?)^```", "\n".join(PAGES.values()), re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return sorted({line.partition(" #")[0].rstrip() for line in lines})


def links(page: Path) -> list[str]:
    """Return the addresses of a page's links and images, without those on the web."""
    addresses = re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)\"", PAGES[page])
    return [a or b for a, b in addresses if not (a or b).startswith("https://")]


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives a page's headings."""
    titles = re.findall(r"^#+ (.+)$", PAGES[page], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def imports() -> list[str]:
    """Return every import of this package in a block of Python, once."""
    lines = re.findall(r"^from eagle_aot.* import .*$", "\n".join(PAGES.values()), re.MULTILINE)
    return sorted(set(lines))


def collect(arguments: list[str]) -> None:
    """Exit as pytest does when it only collects tests."""
    os.chdir(ROOT)
    sys.exit(pytest.main([*arguments, "--collect-only", "-q"]))


def test_example_questions_are_held_out_and_answered(tiny: Runner) -> None:
    text = "\n".join(PAGES.values())
    questions = set(re.findall(r'(?:--prompt |generate\(\s*)"([^"]{9,})"', text))
    assert len(questions) == len(ANSWERS)
    for question in questions:
        expected = next(n for start, n in ANSWERS.items() if question.startswith(start))
        assert is_held_out(question)
        assert final_answer(tiny.generate(question).text or "") == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


def test_readme_is_short_and_leads_to_every_page() -> None:
    assert PAGES[README].count("\n") <= LONGEST_README
    assert {f"docs/{page.name}" for page in DOCS} <= set(links(README))


def test_docs_are_short() -> None:
    assert sum(PAGES[page].count("\n") for page in DOCS) <= LONGEST_DOCS


def test_index_lists_every_results_file_once() -> None:
    results = sorted(path.name for path in RESULTS.iterdir() if path.suffix != ".md")
    assert sorted(link for link in links(INDEX) if link.endswith(".txt")) == results


def python_blocks(page: Path) -> list[str]:
    """Return the blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def test_python_examples_run(
    tiny_artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of docs/python.md, one after the other; the export is resolved and not run."""
    (tmp_path / "gemma4-tiny-xnnpack").symlink_to(tiny_artifact)
    monkeypatch.chdir(tmp_path)
    resolved: list[ResolvedExport] = []
    monkeypatch.setattr(pipeline, "export", resolved.append)
    names: dict[str, Any] = {}
    for block in python_blocks(ROOT / "docs" / "python.md"):
        exec(block, names)
    names["runner"].close()
    answer = names["result"].text
    assert final_answer(answer) == ANSWERS["If Mei owns 7 oranges"]
    assert capsys.readouterr().out.count(answer) == 5, "each way gives it"
    assert len(names["conversation"].messages) == 5 and names["directory"].is_dir()
    assert [export.spec.target_model for export in resolved] == ["gemma4-tiny"]


def test_python_example_of_readme_is_that_of_its_page() -> None:
    (example,) = python_blocks(README)
    page = python_blocks(ROOT / "docs" / "python.md")[0]
    assert example.splitlines()[-1] == page.splitlines()[-1]
    assert 'load_artifact("gemma4-tiny-xnnpack")' in example and "runner.generate(" in example


@pytest.mark.parametrize("line", imports())
def test_python_imports_resolve(line: str) -> None:
    module, _, names = line.removeprefix("from ").partition(" import ")
    for name in names.split(", "):
        assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", MODULES)
def test_commands_have_examples_a_version_and_completion(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gemma4-tiny-xnnpack").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eagle_aot.runtime_runner.spec.local_artifact", Path)  # ORG/NAME
    command = importlib.import_module(MODULES[name]).main
    text = CliRunner().invoke(command, ["--help"], prog_name=name).output
    examples = re.findall(rf"^ +({name} .+)$", text, re.MULTILINE)
    assert examples
    for line in examples:
        check_accepted(line)
    assert CliRunner().invoke(command, ["--version"]).output.startswith("eagle-aot, version ")
    completions = BashComplete(command, {}, name, "_COMPLETE").get_completions([], "--v")
    assert "--version" in [item.value for item in completions]


@pytest.mark.parametrize("line", commands())
def test_commands_are_accepted_by_their_programs(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gemma4-tiny-xnnpack").mkdir()
    monkeypatch.chdir(tmp_path)
    check_accepted(line)


def check_accepted(line: str) -> None:
    """Fail unless the program of a command accepts its arguments."""
    words = [word for word in shlex.split(line) if not word.startswith("PYTHONPATH=")]
    if words[0] in OTHER_PROJECTS:
        return
    if words[0] in ("scripts/get_smollm2", "scripts/check_gpu"):
        assert len(words) == 2 and (ROOT / words[0]).is_file()
        return
    if words[0] == "scripts/setup":
        assert words[1] in EXTRAS and words[2:] == ["&&", "source", ".venv/bin/activate"]
        return
    if words == ["scripts/demo"] or words == ["scripts/test"]:
        assert (ROOT / words[0]).is_file()
        return
    if words[0] in ("pytest", "scripts/test"):
        collecting = FORK.Process(target=collect, args=(words[1:],))
        collecting.start()
        collecting.join()
        assert collecting.exitcode == 0
        return
    if words[0] == "python":
        program, *arguments = words[2:] if words[1] == "-m" else words[1:]
    else:
        program, arguments = MODULES[words[0]], words[1:]
    command: click.Command = (
        runpy.run_path(str(ROOT / program))["main"]
        if program.startswith("scripts/")
        else importlib.import_module(program).main
    )
    while isinstance(command, click.Group) and arguments:
        subcommand = command.get_command(click.Context(command), arguments[0])
        assert subcommand is not None, line
        command, arguments = subcommand, arguments[1:]
    command.make_context(program, arguments)  # raises click's error for an unknown option or value
