"""Publishing an artifact: what is uploaded, its model card, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from huggingface_hub import ModelCard

from eagle_aot.artifact import (
    CheckpointIdentity,
    Device,
    Manifest,
    Stage,
    TargetIdentity,
    file_record,
)
from eagle_aot.artifact.locate import local_artifact
from eagle_aot.export.cli import main
from support.files.artifact import write_artifact
from support.hub import READER, WRITER, Hub, HubRepository, files_of, hub_server, use_hub
from support.refusals import refuses

COMMIT = "0" * 40
TARGET = TargetIdentity(name="llama", directory="org/base", files={}, commit=COMMIT)
HEAD = CheckpointIdentity(directory="org/head:x.gguf", files={}, commit=COMMIT)
TABLE = ("tokens per round in the self-test | 2.50", "context | 64 tokens", "a \ufffd[31mGPU (9.0)")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server with the target's repository, and an artifact in `made`."""
    (tmp_path / "made").mkdir()
    gpu = Device(name="a \x1b[31mGPU", compute_capability="9.0", multiprocessors=1, cuda="13")
    write_artifact(
        tmp_path / "made",
        target=TARGET,
        draft=HEAD,
        device=gpu,
        stages=[Stage("load", 61.0, 1, 1)],
        self_test={"readings": [{"chosen": False, "tau": 9.0}, {"chosen": True, "tau": 2.5}]},
    )
    base = HubRepository({}, card={"license": "other", "license_name": "gemma"})
    base.branches["main"] = COMMIT
    base.commits[COMMIT] = {}
    with hub_server({"org/base": base}) as server:
        use_hub(server, tmp_path, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", WRITER)
        monkeypatch.chdir(tmp_path)
        yield server


def publish(name: str = "org/Made", **options: Any) -> Result:
    arguments = ["--push-to", name, "--output-dir", "made"]
    return CliRunner().invoke(main, arguments, catch_exceptions=False, **options)


def test_published_artifact_is_what_users_download(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "made" / "model.ptd").write_bytes(bytes(5000))
    (tmp_path / "made" / "notes.txt").write_text("mine")
    manifest = Manifest.read(tmp_path / "made")
    manifest.files["model.ptd"] = file_record(tmp_path / "made" / "model.ptd")
    manifest.write(tmp_path / "made")
    result = publish()
    assert (result.exit_code, result.output) == (0, f"{hub.url}/org/Made\n")
    published = hub.repositories["org/Made"]
    files = published.commits[published.branches["main"]]
    assert not published.private
    assert set(files) == {*manifest.files, "manifest.json", "README.md"}
    directory = local_artifact("org/Made")
    assert files_of(directory) == {name: files[name] for name in files if name != "README.md"}
    assert Manifest.read(directory) == manifest
    manifest.verify(directory)


def test_files_of_an_earlier_artifact_are_removed(hub: Hub, tmp_path: Path) -> None:
    earlier = HubRepository({"model.ptd": b"old", "LICENSE": b"mine", "model.pte": b"old"})
    hub.repositories["org/Made"] = earlier
    assert publish().exit_code == 0
    files = earlier.commits[earlier.branches["main"]]
    assert set(files) == {"model.pte", "manifest.json", "README.md", "LICENSE"}
    assert files["model.pte"] == b"program"


def test_model_card_says_what_it_is_and_how_to_run_it(hub: Hub) -> None:
    assert publish().exit_code == 0
    published = hub.repositories["org/Made"]
    card = published.commits[published.branches["main"]]["README.md"].decode()
    text = ModelCard(card).text
    assert ModelCard(card).data.to_dict() == {
        "license": "other", "license_name": "gemma", "base_model": ["org/base", "org/head"],
        "library_name": "eagle-aot", "pipeline_tag": "text-generation",
        "tags": ["executorch", "speculative-decoding", "eagle3"],
    }  # fmt: skip
    assert f"org/base at commit {COMMIT[:12]} with the drafter eagle3" in text
    assert "eagle-run org/Made --chat\neagle-serve org/Made " in text
    assert "That of the base model: gemma." in text
    assert all(row in text for row in TABLE)


def test_licence_of_an_unknown_base_is_not_invented(hub: Hub) -> None:
    del hub.repositories["org/base"]
    assert publish().exit_code == 0
    published = hub.repositories["org/Made"]
    card = published.commits[published.branches["main"]]["README.md"].decode()
    assert "license" not in card and "which this card does not know" in card


@pytest.mark.parametrize(("name", "token", "line"), [
    ("made", WRITER, "--push-to made: expected a repository, ORG/NAME"),
    ("org/made@main", WRITER, "--push-to org/made@main: expected a repository"),
    ("others/made", WRITER, "others/made: ada may not write to others: name one of ada, org"),
    ("org/made", READER, "org/made: no permission (401): log in with a token that has access"),
    ("org/made", "", "org/made: no token: log in with `hf auth login` or set HF_TOKEN"),
])  # fmt: skip
def test_publishing_is_refused_before_any_work(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str, token: str, line: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    refuses(publish(name), line)
    arguments = ["--push-to", name, "--target-model", "gemma4-tiny", "--output-dir", "new"]
    refuses(CliRunner().invoke(main, arguments), line)
    assert not Path("new").exists() and "org/made" not in hub.repositories


def test_failed_upload_says_how_to_try_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def throttled(*args: Any) -> dict[str, str]:
        hub.faults.status = 429
        return {}

    monkeypatch.setattr("eagle_aot.export.publish.push.licence_of", throttled)
    result = publish()
    refuses(result, "no more requests for now (429): wait some minutes and repeat the command")
    assert "publish it with eagle-export --push-to org/Made --output-dir made\n" in result.output


def test_only_artifacts_of_weights_are_published(hub: Hub) -> None:
    for extra in (["--check-only"], ["--load-format", "dummy"]):
        arguments = ["--target-model", "gemma4-tiny", "--push-to", "org/made", *extra]
        assert CliRunner().invoke(main, arguments).exit_code == 2
    assert CliRunner().invoke(main, ["--push-to", "org/made"]).exit_code == 2
    result = CliRunner().invoke(main, ["--push-to", "org/made", "--output-dir", "none"])
    refuses(result, "none: not an artifact")
