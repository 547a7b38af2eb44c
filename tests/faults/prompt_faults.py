"""Prompts and arguments that cannot be served, and an output that nobody reads."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.fault import Arguments, Fault
from faults.scene import QUESTION, Scene, write

ANSWER = "#### 189"


def prompt_faults() -> Iterator[Fault]:
    """All of them."""
    yield from file_faults()
    yield from id_faults()
    yield from output_faults()


def prompted(name: str, content: str | bytes, says: str, option: str = "--prompts-jsonl") -> Fault:
    """A good artifact and a bad file of prompts."""

    def arrange(scene: Scene) -> Arguments:
        return [scene.good, option, scene.prompts(content), "--json"]

    return Fault(name=name, arrange=arrange, says=says)


def with_options(name: str, options: Callable[[Scene], Arguments], says: str) -> Fault:
    """A good artifact and other options."""
    return Fault(name=name, arrange=lambda scene: [scene.good, *options(scene)], says=says)


def file_faults() -> Iterator[Fault]:
    """What a file of prompts may hold instead."""
    yield prompted("prompts: not JSON", "{'prompt': 1}", "prompts.jsonl:1: not JSON")
    yield prompted("prompts: a number", "17", 'expected {"prompt"')
    yield prompted("prompts: both keys", '{"prompt": "a", "token_ids": [1]}', 'expected {"prompt"')
    yield prompted("prompts: empty", "", "holds no prompts")
    yield prompted("prompts: not UTF-8", bytes(range(256)), "cannot be read")
    yield prompted("prompts: 100,000 brackets deep", 100_000 * "[", "prompts.jsonl:1: not JSON")
    yield prompted("prompts: half a character", '{"prompt": "\\ud800"}', "not valid Unicode")
    yield prompted("prompts: 4 MB in one line", json.dumps({"prompt": "a " * 2**21}), "shorten the")
    yield prompted("prompt file: binary", bytes(range(128, 256)), "cannot be read", "--prompt-file")
    yield with_options("prompts: a directory", lambda s: ["--prompts-jsonl", s.directory], "cannot")
    yield with_options("prompts: missing", lambda s: ["--prompts-jsonl", "none"], "cannot be read")
    yield with_options("prompt: too long", lambda s: ["--prompt", 2000 * "Tom "], "shorten the")


def id_faults() -> Iterator[Fault]:
    """Token ids and counts outside what the artifact takes."""
    for ids in ("[1024]", "[-1]", "[9223372036854775808]"):
        yield prompted(f"token ids: {ids}", f'{{"token_ids": {ids}}}', "the vocabulary of 1024")
    for ids in ("[1.5]", "[true]", '["1"]'):
        yield prompted(f"token ids: {ids}", f'{{"token_ids": {ids}}}', 'expected {"prompt"')
    for stop in ("-5", "1024", "36893488147419103232"):
        yield with_options(
            f"--stop-id {stop}",
            lambda scene, stop=stop: ["--prompt", "Tom", "--stop-id", stop],
            "is outside the vocabulary of 1024",
        )
    yield with_options(
        "--chain-len 16", lambda s: ["--prompt", "Tom", "--chain-len", "16"], "1 to 15"
    )


def output_faults() -> Iterator[Fault]:
    """Somebody who does not want the answer, or gets it all the same."""
    yield asked("stdout: its reader is gone", stdout="pipe without a reader", says="")
    yield asked("stdout: a full disk", stdout="/dev/full", says="No space left on device")
    yield asked("stdout: closed", stdout="closed", code=0)
    yield Fault(
        name="prompts: blank lines, a byte order mark, line ends of Windows",
        arrange=_odd_but_good,
        code=0,
        check=answers_right,
    )
    yield Fault(
        name="--max-new-tokens: more than there are",
        arrange=lambda s: [*_asking(s), "--max-new-tokens", "9223372036854775808"],
        code=0,
        check=answers_right,
    )
    yield Fault(
        name="--plot: in a directory that is not there",
        arrange=lambda s: [*_asking(s), "--plot", s.directory / "none" / "a.png"],
        says="none",
    )


def asked(name: str, stdout: str, says: str = "", code: int = 1) -> Fault:
    """One question, answered to somewhere odd."""
    return Fault(name=name, arrange=_asking, stdout=stdout, says=says, code=code)


def answers_right(scene: Scene, output: str) -> str | None:
    """The good artifact's answer."""
    lines = [json.loads(line) for line in output.splitlines()]
    if lines and ANSWER in lines[0]["text"]:
        return None
    return f"another answer: {output[:100]!r}"


def _asking(scene: Scene) -> list[str | Path]:
    return [scene.good, "--prompt", QUESTION, "--json"]


def _odd_but_good(scene: Scene) -> Arguments:
    line = json.dumps({"prompt": QUESTION}).encode()
    content = b"\xef\xbb\xbf\r\n" + line + b"\r\n\r\n"
    return [scene.good, "--prompts-jsonl", write(scene.directory / "odd.jsonl", content), "--json"]
