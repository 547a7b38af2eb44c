"""What README and docs/ tell a stranger to type does what they expect."""

import importlib
import multiprocessing
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

import click
import pytest

from eagle_aot.lab.training.tiny.stories import final_answer, is_held_out
from eagle_aot.runtime_runner import Runner

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = {path: path.read_text(encoding="utf-8") for path in (README, *ROOT.glob("docs/*.md"))}
LONGEST_README = 200  # lines
ANSWERS = {"Ada has 27 marbles": 189, "If Mei owns 7 oranges": 63}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MODULES = {
    "eagle-batch": "eagle_aot.runtime_runner.serve.on_ray.batch",
    "eagle-bench": "eagle_aot.lab.bench.cli",
    "eagle-export": "eagle_aot.export.cli",
    "eagle-run": "eagle_aot.runtime_runner.cli",
    "eagle-serve": "eagle_aot.runtime_runner.serve.cli",
}

FORK = multiprocessing.get_context("fork")
"""For processes that need not import again what is imported here."""


def commands() -> list[str]:
    """Every line of every block of shell commands, once."""
    blocks = re.findall(r"^```bash\n(.*?)^```", "\n".join(PAGES.values()), re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return sorted({line.partition(" #")[0].rstrip() for line in lines})


def links() -> list[tuple[Path, str]]:
    """Every page with each place it leads to, but those on the web."""
    found = [(page, link) for page, text in PAGES.items() for link in targets(text)]
    return [(page, link) for page, link in found if not link.startswith("https://")]


def targets(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", text)


def anchors(text: str) -> set[str]:
    """What a page's headings are called in links, as GitHub does it."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def collect(arguments: list[str]) -> None:
    """Exit as pytest does where it shows which tests it would run."""
    os.chdir(ROOT)
    sys.exit(pytest.main([*arguments, "--collect-only", "-q"]))


def test_their_questions_were_never_trained_on_and_are_answered(tiny: Runner) -> None:
    text = "\n".join(PAGES.values())
    asked = re.findall(r'(?:--prompt |generate\(\s*)"([^"]{9,})"', text)
    assert len(set(asked)) == len(ANSWERS)
    for question in set(asked):
        expected = next(n for start, n in ANSWERS.items() if question.startswith(start))
        assert is_held_out(question)
        assert final_answer(tiny.generate(question).text or "") == expected


def test_their_links_lead_somewhere() -> None:
    for page, link in links():
        path, _, anchor = link.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(PAGES[place]), f"{page.name}: {link}"


def test_readme_is_short_and_leads_to_every_page() -> None:
    assert PAGES[README].count("\n") <= LONGEST_README
    assert {f"docs/{page.name}" for page in PAGES if page != README} <= set(targets(PAGES[README]))


@pytest.mark.parametrize("line", commands())
def test_their_commands_are_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gemma4-tiny-xnnpack").mkdir()
    monkeypatch.chdir(tmp_path)
    words = [word for word in shlex.split(line) if not word.startswith("PYTHONPATH=")]
    if words[0] in ("scripts/get_smollm2", "scripts/check_gpu"):
        assert len(words) == 2 and (ROOT / words[0]).is_file()
        return
    if words[:2] == ["pip", "install"] or words[0] == "lm_eval":  # another project's
        return
    if words[0] == "scripts/setup":
        assert words[1] in EXTRAS and words[2:] == ["&&", "source", ".venv/bin/activate"]
        return
    if words[0] in ("scripts/demo", "scripts/test"):
        assert words[1:] == [] and (ROOT / words[0]).is_file()
        return
    if words[0] == "pytest":
        collecting = FORK.Process(target=collect, args=(words[1:],))
        collecting.start()
        collecting.join()
        assert collecting.exitcode == 0
        return
    if words[0] == "python":
        program, *arguments = words[2:] if words[1] == "-m" else words[1:]
        module = Path(program).stem if program.startswith("scripts/") else program
    else:
        module, arguments = MODULES[words[0]], words[1:]
    command: click.Command = importlib.import_module(module).main
    command.make_context(module, arguments)  # raises what a wrong option or value raises
