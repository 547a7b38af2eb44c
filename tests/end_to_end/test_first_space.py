"""Answers after a tokenizer of Llama 2's kind, whose decoder drops the first space of a text."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, normalizers

from eagle_aot.artifact import Manifest, file_record
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.service import LocalService
from eagle_aot.runtime_runner.serve.spec import ServeSpec

PROMPT, COUNT = "w7 w8", 6
SPECIAL = ["<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>"]


@pytest.fixture(scope="module")
def artifact(batch_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random pair with a word for each id, all with a space in front."""
    copy = tmp_path_factory.mktemp("words") / "artifact"
    shutil.copytree(batch_artifact, copy)
    manifest = Manifest.read(copy)
    words = [*SPECIAL, *(f"\u2581w{number}" for number in range(len(SPECIAL), 1024))]
    vocabulary = {word: number for number, word in enumerate(words)}
    library = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
    library.add_special_tokens(SPECIAL)
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    library.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    (copy / "tokenizer.json").unlink()
    library.save(str(copy / "tokenizer.json"))
    manifest.files["tokenizer.json"] = file_record(copy / "tokenizer.json")
    manifest.write(copy)
    return copy


@pytest.fixture(scope="module")
def runner(artifact: Path) -> Runner:
    return load_artifact(artifact)


@pytest.fixture(scope="module")
def client(runner: Runner, answer: tuple[list[int], str]) -> Iterator[TestClient]:
    service = LocalService(
        runner, ServeSpec(artifact=runner.directory, served_model_name=("words",))
    )
    service.worker.start()
    with TestClient(make_app(service), base_url="http://127.0.0.1") as client:
        yield client
    service.worker.close()


@pytest.fixture(scope="module")
def answer(runner: Runner) -> tuple[list[int], str]:
    """The ids of a greedy answer, and what they add to the decoded prompt."""
    prompt = [7, 8]
    ids = runner.generate(prompt, COUNT, ignore_eos=True).token_ids
    decode = runner.tokenizer.decode
    text = decode([*prompt, *ids]).removeprefix(decode(prompt))
    assert text.startswith(" w") and decode(ids) == text[1:]
    return ids, text


def test_texts_streams_echoes_and_stops(runner: Runner, answer: tuple[list[int], str]) -> None:
    ids, text = answer
    options: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": COUNT}
    for speculate in (True, False):
        parts: list[str] = []
        result = runner.generate([7, 8], speculate=speculate, on_text=parts.append, **options)
        assert (result.token_ids, result.text, "".join(parts)) == (ids, text, text)
    echo = runner.generate([7, 8], echo=True, logprobs=0, **options)
    assert echo.text == PROMPT + text and echo.logprobs is not None
    lengths = [len(runner.tokenizer.decode([7, 8, *ids[:i]])) for i in range(COUNT)]
    assert [token.offset for token in echo.logprobs] == lengths
    plain = runner.generate([7, 8], logprobs=0, **options)
    assert plain.logprobs is not None
    assert [token.offset for token in plain.logprobs] == [n - len(PROMPT) for n in lengths]
    first = text[: text.index(" ", 1)]
    stopped = runner.generate([7, 8], stop_texts=[first], **options)
    assert (stopped.text, stopped.finish_reason) == ("", "stop")
    several = list(runner.generate_many([[7, 8], [9, 7, 8]], **options))
    assert [getattr(r, "text", "")[:2] for r in several] == [" w", " w"]


def test_eagle_run_prints_the_first_space(artifact: Path, answer: tuple[list[int], str]) -> None:
    lines = artifact.parent / "prompts.jsonl"
    lines.write_text('{"token_ids": [7, 8]}\n')
    options = ["--prompts-jsonl", str(lines), "--max-new-tokens", str(COUNT), "--ignore-eos"]
    for more in ([], ["--batch-size", "2"]):
        done = CliRunner().invoke(main, [str(artifact), *options, *more, "--json"])
        assert json.loads(done.stdout.splitlines()[0])["text"] == answer[1], done.output


@pytest.mark.parametrize("echo", [False, True])
def test_the_server_returns_the_first_space(
    client: TestClient, answer: tuple[list[int], str], echo: bool
) -> None:
    expected = PROMPT * echo + answer[1]
    body = {"model": "words", "prompt": [7, 8], "max_tokens": COUNT, "temperature": 0, "echo": echo,
            "logprobs": 0, "ignore_eos": True}  # fmt: skip
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"] == expected
    assert choice["logprobs"]["text_offset"][-COUNT] == len(PROMPT) * echo
    streamed = client.post("/v1/completions", json=body | {"stream": True, "trace": True}).text
    chunks = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    traced = [
        token["text"] for chunk in chunks for token in chunk.get("trace", {}).get("tokens", ())
    ]
    assert "".join(traced) == answer[1]
