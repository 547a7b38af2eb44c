"""Downloads from a server that speaks the Hub's API, by the real client, and their failures."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub
import pytest
from huggingface_hub import constants

from eagle_aot.common.errors import HubError
from eagle_aot.common.hub import Repository, download, fetch, plan_download
from eagle_aot.common.progress import Progress
from support.hub import (
    READER,
    Faults,
    Hub,
    HubRepository,
    hub_environment,
    hub_server,
    sha256,
    use_hub,
)

BIG, SMALL = bytes(range(256)) * 256, b'{"a": 1}'
FILES = {"config.json": SMALL, "model.safetensors": BIG, "README.md": b"#"}


def select(names: Sequence[str]) -> list[str]:
    return [name for name in names if name != "README.md"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repositories = {
        "org/model": HubRepository(FILES),
        "org/secret": HubRepository(FILES, private=True),
        "org/licensed": HubRepository(FILES, gated=True),
    }
    with hub_server(repositories) as server:
        use_hub(server, tmp_path, monkeypatch)
        yield server


def fetched(name: str = "org/model") -> Path:
    repository = Repository.parse(name)
    assert repository is not None
    return download(repository, select)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


WANTED = {"config.json": SMALL, "model.safetensors": BIG}


@pytest.mark.parametrize(("text", "repository"), [
    ("org/model", Repository("org/model")),
    ("org/model@v1.0", Repository("org/model", "v1.0")),
    ("org/model@refs/pr/4:Q4_K_M", Repository("org/model", "refs/pr/4", "Q4_K_M")),
    ("org/Model-1.5_x:a.gguf", Repository("org/Model-1.5_x", None, "a.gguf")),
    *((text, None) for text in ("model", "./model", "../x", "~/x", "a/b/c", "/a/b", "a/b@", "")),
])  # fmt: skip
def test_names_of_repositories(text: str, repository: Repository | None) -> None:
    assert Repository.parse(text) == repository
    assert repository is None or str(repository) == text


def test_second_download_makes_no_request(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    directory = fetched()
    commit = hub.repositories["org/model"].branches["main"]
    assert directory.name == commit and content(directory) == WANTED
    assert Repository.of_path(directory) == Repository("org/model", commit)
    assert f"org/model: downloads 2 of 2 files, 0.1 MB, of {commit}" in capsys.readouterr().err
    hub.requests.clear()
    assert fetched() == fetched(f"org/model@{commit}") == directory
    assert (hub.requests, capsys.readouterr().err) == ([], "")


def test_terminal_shows_bytes_until_all_are_there(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, progress = list[int](), Progress()

    @contextmanager
    def download(name: str, size: int) -> Iterator[Callable[[int], None]]:
        assert (name, size) == ("download org/model", len(SMALL) + len(BIG))
        yield shown.append

    monkeypatch.setattr(progress, "download", download)
    wanted = plan_download(Repository("org/model"), lambda names: [*WANTED])
    fetch([wanted], progress)
    assert max(shown) == len(SMALL) + len(BIG)


def test_branch_is_looked_up_and_other_commits_stay(hub: Hub) -> None:
    first = fetched("org/model@main")
    changed = FILES | {"config.json": b"{}"}
    hub.repositories["org/model"].commit("main", changed)
    hub.repositories["org/model"].commit("next", changed | {"config.json": b"[]"})
    assert fetched() == first, "a name without a revision is what the cache has"
    hub.requests.clear()
    assert content(fetched("org/model@main"))["config.json"] == b"{}"
    assert sum("/cdn/" in request for request in hub.requests) == 0, "only what changed"
    assert content(fetched("org/model@next"))["config.json"] == b"[]"
    assert content(fetched(f"org/model@{first.name}"))["config.json"] == SMALL


def test_token_opens_private_and_gated_repositories(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", READER)
    for name in ("org/secret", "org/licensed"):
        assert content(fetched(name)) == WANTED


def test_renamed_repository_is_recorded_by_its_new_name(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.renamed["org/old"] = "org/model"
    found = Repository.of_path(fetched("org/old"))
    assert found is not None and found.id == "org/model"
    assert "org/old: is now org/model: use that name\n" in capsys.readouterr().err


def test_names_outside_the_top_folder_are_not_seen(hub: Hub) -> None:
    files = FILES | {"../evil.safetensors": b"x", "original/model.safetensors": b"x"}
    hub.repositories["org/model"].commit("main", files)
    assert content(fetched()) == WANTED


def test_cut_in_every_file_is_resumed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4)  # what the client keeps of a cut file
    hub.faults.cut = True
    assert content(fetched()) == WANTED
    assert len(hub.cuts) == len(hub.ranges) == 2


def test_requests_are_repeated_when_throttled(hub: Hub) -> None:
    hub.faults.throttle = 3
    assert content(fetched()) == WANTED
    assert hub.faults.throttle == 0


class Case(NamedTuple):
    """A name, what goes wrong, and what the line says."""

    name: str
    faults: dict[str, Any]
    line: str


@pytest.mark.parametrize("case", [
    Case("org/none", {}, "neither a path here nor a repository on http.*: check the name, or log"),
    Case("org/secret", {}, "neither .*, unless a private one: .*hf auth login"),
    Case("org/licensed", {}, r"gated: accept its licence at http://.*/org/licensed, and log in"),
    Case("org/model@v9", {}, "org/model@v9: no such revision: http://.*/org/model/commits lists"),
    Case("org/model", {"throttle": 10**6}, r"no more requests for now \(429\): wait some minutes"),
    Case("org/model", {"status": 503}, r"the Hub answers 503: repeat the command later"),
    Case("org/model", {"status": 403}, r"no permission \(403\): log in"),
    Case("org/model", {"page": b"<html>Log in to this network"}, "does not answer as a Hub does"),
    Case("org/model", {"page": b'{"id": "org/model"}'}, "does not answer as a Hub does"),
    Case("org/a--b", {}, "not the name of a repository"),
    Case("org/model", {"corrupt": "config.json"}, "config.json: not the content that the Hub list"),
])  # fmt: skip
def test_failures_say_what_to_do(hub: Hub, case: Case) -> None:
    hub.faults = Faults(**case.faults)
    with pytest.raises(HubError, match=case.line) as raised:
        fetched(case.name)
    assert "\n" not in str(raised.value)
    hub.faults = Faults()
    assert content(fetched()) == WANTED, "what is wrong does not stay"


def test_wrong_hash_of_a_large_file_is_found(hub: Hub) -> None:
    hub.faults.corrupt = sha256(BIG)
    with pytest.raises(HubError, match=r"model\.safetensors: not the content .* was removed"):
        fetched()
    hub.faults = Faults()
    assert content(fetched()) == WANTED


@pytest.mark.parametrize("cached", [True, False])
def test_offline_the_cache_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    directory = fetched() if cached else None
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if cached:
        assert fetched() == fetched("org/model@main") == directory
    with pytest.raises(HubError, match=r"org/secret: not complete in the cache .* HF_HUB_OFFLINE"):
        fetched("org/secret")
    assert not hub.requests


def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"http://127.0.0.1:9 cannot be reached \(ConnectError\)"):
        fetched()


def test_disk_is_checked_before_and_may_be_full_nevertheless(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(Path.cwd())
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        with pytest.raises(HubError, match=r"0\.1 MB are to be downloaded, and 0\.0 MB are free"):
            fetched()
    assert not any(request.startswith("GET /cdn") for request in hub.requests)

    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub.file_download, "http_get", full)
        with pytest.raises(HubError, match=r"the disk of .* is full: make room, or set HF_HOME"):
            fetched()


def test_interrupt_ends_a_download_within_a_chunk(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*args: Any, tqdm_class: Any, **options: Any) -> None:
        bar = tqdm_class(total=1, disable=True)
        bar.update(1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            bar.update(0)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", endless)
    # Python installs no handler in a process that was started to ignore the signal.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            fetched()
    finally:
        signal.signal(signal.SIGINT, handler)


SCRIPT = """
import sys
from eagle_aot.common.hub import Repository, download, fetch, plan_download
from eagle_aot.common.progress import Progress
path = download(Repository("org/model"), lambda names: [n for n in names if n != "README.md"])
print(path)
"""


@pytest.mark.slow
def test_two_processes_download_the_same_at_once(hub: Hub, tmp_path: Path) -> None:
    environment = hub_environment(hub, tmp_path / "shared")
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    printed = {process.communicate()[0].decode() for process in processes}
    (path,) = printed
    assert content(Path(path.strip())) == WANTED
    listing = json.loads(next(Path(path.strip()).parents[1].glob("trees/*.json")).read_text())
    assert set(listing["files"]) == set(FILES)
