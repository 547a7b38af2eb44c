"""Two engines on Ray, on this CPU: one of them dies, and clients do not notice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from support.server import Server, served

pytest.importorskip("ray", reason="needs pip install 'eagle-aot[ray]'")

NAME = b"ray::ServeReplica:eagle-aot:Replica"
QUESTIONS = [
    f"Ada has {count} marbles. Marco has 6 times as many. How many marbles do they have together?"
    for count in range(3, 35)
]


def replicas() -> list[int]:
    """Return the ids of the replicas' processes on this machine, the oldest first."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            if process.name.isdecimal() and NAME in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return sorted(found)


@pytest.fixture(scope="module")
def server(tiny_artifact: Path) -> Iterator[Server]:
    with served(tiny_artifact, "--served-model-name", "tiny", "--replicas", "2") as server:
        yield server


def listening(server: Server) -> dict[str, str]:
    """Return the addresses that the server's processes listen on, with the processes' names."""
    parents, sockets = dict[int, int](), dict[str, int]()
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            number = int(process.name)
            parents[number] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            for file in (process / "fd").iterdir():
                sockets[os.readlink(file)] = number
    processes = {server.process.pid}
    while more := {n for n, parent in parents.items() if parent in processes} - processes:
        processes |= more
    addresses = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            owner = sockets.get(f"socket:[{inode}]")
            if state == "0A" and owner in processes:
                addresses[address] = Path(f"/proc/{owner}/comm").read_text().strip()
    return addresses


LOOPBACK_ADDRESSES = ("0100007F:", "0000000000000000FFFF00000100007F:", f"{'0' * 24}01000000:")
"""127.0.0.1, as IPv4 and within IPv6, and ::1, as the kernel writes them."""


@pytest.mark.slow
def test_all_sockets_are_on_the_loopback_interface_and_need_a_token(server: Server) -> None:
    """Ray runs what is sent to them."""
    addresses = listening(server)
    assert len(addresses) > 10, "of the store, the node and each actor"
    assert any("REPL" in name.upper() for name in addresses.values())
    assert [a for a in addresses if not a.startswith(LOOPBACK_ADDRESSES)] == []
    for process in replicas():
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        assert b"RAY_AUTH_MODE=token" in environment


def parts(server: Server, text: str) -> Iterator[str]:
    """Yield the answer part by part; the first one is empty and comes as the answer begins."""
    chunks = server.client.chat.completions.create(
        model="tiny", temperature=0, messages=[{"role": "user", "content": text}], stream=True
    )
    yield from (chunk.choices[0].delta.content or "" for chunk in chunks)


def streamed(server: Server, text: str) -> str:
    return "".join(parts(server, text))


def test_replicas_give_the_texts_of_one_engine(server: Server, tiny: Runner) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda text: streamed(server, text), QUESTIONS[:8]))
    assert texts == [tiny.generate(text, 200).text for text in QUESTIONS[:8]]


def test_several_answers_to_one_request_are_those_of_one_engine(
    server: Server, tiny: Runner
) -> None:
    """Each answer is a call to Ray."""
    prompts = QUESTIONS[:2]
    parameters: Any = {"temperature": 2.0, "seed": 7, "n": 2}
    complete: Any = partial(
        server.client.completions.create, model="tiny", prompt=prompts, max_tokens=6
    )
    expected = [
        tiny.answer(prompt, one).text
        for prompt in prompts
        for one in GenerationParams(**parameters, max_new_tokens=6, raw_prompt=True).answers()
    ]
    assert [choice.text for choice in complete(**parameters, timeout=60).choices] == expected


def test_log_probabilities_of_prompt_and_answer_are_those_of_one_engine(
    server: Server, tiny: Runner
) -> None:
    """In a whole response and in a stream, before those of the answer."""
    parameters: Any = {"logprobs": 2, "echo": True}
    one = tiny.generate(QUESTIONS[0], 4, raw_prompt=True, prompt_logprobs=2, **parameters)
    expected = [token.logprob for token in (*(one.prompt_logprobs or ()), *(one.logprobs or ()))]
    parameters |= {"model": "tiny", "prompt": QUESTIONS[0], "max_tokens": 4, "temperature": 0}
    complete: Any = partial(server.client.completions.create, **parameters)
    (whole,) = complete().choices
    parts = [choice for chunk in complete(stream=True) for choice in chunk.choices]
    lists = [part.logprobs.token_logprobs for part in parts if part.logprobs]
    assert whole.logprobs.token_logprobs == expected
    assert [logprob for part in lists for logprob in part] == expected
    assert "".join(part.text for part in parts) == whole.text == one.text


def test_a_client_does_not_notice_that_a_replica_dies(server: Server, tiny: Runner) -> None:
    expected = [tiny.generate(text, 200).text for text in QUESTIONS]
    victim, _ = replicas()
    with ThreadPoolExecutor(8) as pool:
        coming = pool.map(lambda text: streamed(server, text), QUESTIONS)
        time.sleep(0.3)
        os.kill(victim, signal.SIGKILL)
        assert list(coming) == expected
    ends = time.monotonic() + 60
    while len(replicas()) < 2 or victim in replicas():
        assert time.monotonic() < ends, "it was not replaced"
        time.sleep(0.5)


def test_shutting_down_finishes_running_answers(server: Server) -> None:
    coming = [parts(server, text) for text in QUESTIONS[:4]]
    assert [next(answer) for answer in coming] == [""] * 4
    server.stop()
    assert all("####" in "".join(answer) for answer in coming)
    assert server.process.wait(60) == 0


@pytest.mark.slow
def test_eagle_batch_answers_a_file_of_prompts(
    tiny_artifact: Path, tiny: Runner, tmp_path: Path
) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in QUESTIONS[:9]))
    answers.write_text('{"prompt_tokens": 1}\n{"prompt')
    module = "eagle_aot.runtime_runner.serve.on_ray.batch"
    how: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 7}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in how.items()]
    command: list[str | Path] = [sys.executable, "-m", module, tiny_artifact, prompts, answers]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for line in ("8 answers, after 1", "0 answers, after 9"):
        done = subprocess.run([*command, *options], capture_output=True, text=True, env=environment)
        assert done.returncode == 0 and line in done.stderr, done.stderr
        assert "deprecat" not in done.stderr.lower()
    first, *lines = answers.read_text().splitlines()
    assert first == '{"prompt_tokens": 1}'
    token_ids = [json.loads(line)["token_ids"] for line in lines]
    assert token_ids == [tiny.generate(text, **how).token_ids for text in QUESTIONS[1:9]]
