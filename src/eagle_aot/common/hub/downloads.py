"""Downloads of a repository's files into the local cache, compared with the Hub's listing."""

import glob
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eagle_aot.common.errors import HubError
from eagle_aot.common.hub.errors import NO_HUB, hub_errors
from eagle_aot.common.hub.repository import COMMIT, Repository
from eagle_aot.common.text import gigabytes

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

    from eagle_aot.common.progress import Progress

DIGEST_BYTES = 1 << 20
PARTIAL_CONTENT = 206  # HTTP's status of a part of a file

Select = Callable[[Sequence[str]], list[str]]
"""Chooses the files to download from the names in a repository's top folder. May raise
EagleError."""


@dataclass(frozen=True, slots=True)
class Download:
    """Files of one commit of a repository, those among them that are not in the cache, and the
    directory that will have them all."""

    repository: Repository
    commit: str
    files: tuple[str, ...]
    missing: "tuple[RepoFile, ...]"
    directory: Path

    @property
    def bytes(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.missing)


def download(repository: Repository, select: Select) -> Path:
    """Return the directory in the cache that has the selected files. Raises HubError."""
    plan = plan_download(repository, select)
    fetch([plan])
    return plan.directory


def plan_download(repository: Repository, select: Select) -> Download:
    """Choose a commit and files, and find which of them are not in the cache.

    A name without a revision, or with a commit, that is complete in the cache needs no request; a
    branch or a tag is always looked up, unless HF_HUB_OFFLINE is set. Raises HubError.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.hf_api import RepoFile

    is_pinned = repository.revision is None or COMMIT.fullmatch(repository.revision)
    with hub_errors(repository):
        if is_pinned or constants.HF_HUB_OFFLINE:
            cached = _cached_download(repository, select)
            if cached is not None:
                return cached
        api = HfApi()
        info = api.model_info(repository.id, revision=repository.revision)
        if info.sha is None:
            raise HubError(f"{repository}: {NO_HUB.format(constants.ENDPOINT)}")
        if info.id != repository.id:
            click.echo(f"{repository.id}: is now {info.id}: use that name", err=True)
            repository = Repository(info.id, repository.revision, repository.file)
        if info.gated:
            api.auth_check(repository.id)
        # Records the commit of the branch in the cache, for the next time.
        api.resolve_revision(repository.id, revision=repository.revision)
        entries = api.list_repo_tree(repository.id, revision=info.sha)
        listing = {
            entry.path: entry
            for entry in entries
            if isinstance(entry, RepoFile) and "/" not in entry.path
        }
        files = tuple(select(list(listing)))
        directory = _snapshot(repository.id, info.sha)
        missing = tuple(listing[name] for name in files if not (directory / name).is_file())
        return Download(repository, info.sha, files, missing, directory)


def fetch(downloads: Sequence[Download], progress: "Progress | None" = None) -> None:
    """Download what is not in the cache, and compare it with the hashes of the repository's
    listing; each repository is a stage of the progress. Raises HubError, before anything is
    downloaded if the disk is too small."""
    _check_disk(sum(download.bytes for download in downloads))
    for plan in downloads:
        if not plan.missing:
            continue
        count = f"{len(plan.missing)} of {len(plan.files)} files"
        line = f"{plan.repository}: downloads {count}, {gigabytes(plan.bytes)}, of {plan.commit}"
        click.echo(line, err=True)
        with hub_errors(plan.repository):
            _download_files(plan, progress)
            _check_digests(plan)


def read_range(repository: Repository, commit: str, name: str, span: range) -> bytes:
    """Read some bytes of a file of a commit. Raises HubError."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    url = hf_hub_url(repository.id, name, revision=commit)
    headers = build_hf_headers() | {"Range": f"bytes={span.start}-{span.stop - 1}"}
    with (
        hub_errors(repository),
        get_session().stream("GET", url, headers=headers, follow_redirects=True) as response,
    ):
        hf_raise_for_status(response)
        skipped = 0 if response.status_code == PARTIAL_CONTENT else span.start
        data = bytearray()
        for block in response.iter_bytes():  # a server without ranges sends the whole file
            data += block
            if len(data) >= skipped + len(span):
                break
        return bytes(data[skipped : skipped + len(span)])


def _download_files(plan: Download, progress: "Progress | None") -> None:
    """Download a snapshot in a thread, so that Ctrl-C ends it within a chunk.

    `snapshot_download` itself would first download whole the files that it has begun.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars, tqdm

    from eagle_aot.common.progress import Progress  # imports torch

    disable_progress_bars()
    interrupted = threading.Event()

    class Reporter(tqdm):
        """Reports the bytes received instead of showing them; ends the threads that call it."""

        def __init__(self, *args: Any, unit: str = "it", **options: Any) -> None:
            super().__init__(*args, **options)
            self._received = 0 if unit == "B" else None

        def update(self, n: float | None = 1) -> bool | None:
            if interrupted.is_set():
                raise KeyboardInterrupt
            if self._received is not None:
                self._received += int(n or 0)
                show(self._received)
            return super().update(n)

    stage = (progress or Progress()).download(f"download {plan.repository.id}", plan.bytes)
    with stage as show, ThreadPoolExecutor(1) as pool:
        try:
            snapshot = pool.submit(
                snapshot_download,
                plan.repository.id,
                revision=plan.commit,
                allow_patterns=[glob.escape(name) for name in plan.files],
                tqdm_class=Reporter,
            )
            snapshot.result()
        except KeyboardInterrupt:
            interrupted.set()
            raise


def _cached_download(repository: Repository, select: Select) -> Download | None:
    """Return a download that is complete in the cache, without a request; None if it is not."""
    from huggingface_hub import get_cached_repo_tree, try_to_load_from_cache
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    revision = repository.revision or "main"
    try:
        listing = get_cached_repo_tree(repository.id, revision=revision)
    except CachedRepoTreeNotFoundError:
        return None
    files = tuple(select([entry.path for entry in listing if "/" not in entry.path]))
    paths = [try_to_load_from_cache(repository.id, name, revision=revision) for name in files]
    found = [Path(path) for path in paths if isinstance(path, str)]
    if len(found) < len(files) or not found:
        return None
    directory = found[0].parent
    return Download(repository, directory.name, files, (), directory)


def _snapshot(repository_id: str, commit: str) -> Path:
    """Return the directory of a commit in the cache."""
    from huggingface_hub import constants

    folder = f"models--{repository_id.replace('/', '--')}"
    return Path(constants.HF_HUB_CACHE).expanduser().absolute() / folder / "snapshots" / commit


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids requests."""
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def cache_directory() -> Path:
    """Return the directory next to the Hub's cache for downloads from elsewhere."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser().absolute().parent / "eagle-aot"


def _check_disk(needed: int) -> None:
    """Raise HubError unless the disk of the cache has `needed` bytes free."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser().absolute()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    if needed and (free := shutil.disk_usage(existing).free) < needed:
        raise HubError(
            f"{cache}: {gigabytes(needed)} are to be downloaded, and {gigabytes(free)} are free on "
            "its disk: make room, or set HF_HOME to a directory on another disk"
        )


def _check_digests(plan: Download) -> None:
    """Compare what was downloaded with the listing's hashes. Removes a file that differs, so that
    it is downloaded again, and raises HubError."""
    with ThreadPoolExecutor() as pool:
        matches = list(pool.map(lambda file: _matches(plan.directory, file), plan.missing))
    wrong = [file.path for file, same in zip(plan.missing, matches, strict=True) if not same]
    for name in wrong:
        path = plan.directory / name
        Path(os.path.realpath(path)).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    if wrong:
        raise HubError(
            f"{plan.repository}: {', '.join(wrong)}: not the content that the Hub lists, so it was "
            "removed: repeat the command, without the proxy or mirror that changed it"
        )


def _matches(directory: Path, listed: "RepoFile") -> bool:
    """Whether a file has its listed hash: SHA-256 for large files, Git's of a blob for others.

    Xet itself compares a file that has only the hash of Xet.
    """
    if listed.lfs is None and listed.xet_hash is not None:
        return True
    path = directory / listed.path
    digest = hashlib.sha256() if listed.lfs else hashlib.sha1(usedforsecurity=False)
    if not listed.lfs:
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(DIGEST_BYTES):
            digest.update(block)
    return digest.hexdigest() == (listed.lfs.sha256 if listed.lfs else listed.blob_id)
