"""Repositories of the Hugging Face Hub: their names, downloads into the local cache, and errors.

`huggingface_hub` does the work: HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are its settings.
It is imported on first use.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eagle_aot.common.errors import EagleError, HubError, reason
from eagle_aot.common.text import gigabytes

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

    from eagle_aot.common.progress import Progress

NAME = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[^:@]+))?(:(?P<file>[^/:@]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
SNAPSHOT = re.compile(
    rf".*/models--(?P<id>[^/]+)/snapshots/(?P<commit>{COMMIT.pattern})(/(?P<file>[^/]+))?"
)
DIGEST_BYTES = 1 << 20
PARTIAL_CONTENT = 206  # HTTP's status of a part of a file
NO_HUB = "{} does not answer as a Hub does: check HF_ENDPOINT and the network"

Select = Callable[[Sequence[str]], list[str]]
"""Chooses the files to download from the names in a repository's top folder. May raise
EagleError."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository as users write it, `ORG/NAME[@REVISION][:FILE]`; a revision is a branch, a tag
    or a commit."""

    id: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Repository | None":
        """Read a name; None for what cannot be one."""
        match = NAME.fullmatch(text)
        is_path = text.startswith((".", "~")) or match is None
        return None if is_path or match is None else cls(*match.group("id", "revision", "file"))

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.id}{revision}{f':{self.file}' if self.file else ''}"

    @classmethod
    def of_path(cls, path: Path) -> "Repository | None":
        """Return the repository, commit and file of a path in the cache; None for other paths."""
        match = SNAPSHOT.fullmatch(path.absolute().as_posix())
        if match is None:
            return None
        return cls(match["id"].replace("--", "/"), match["commit"], match["file"])


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


@contextmanager
def hub_errors(repository: Repository) -> Iterator[None]:
    """Raise HubError, one line that says what to do, for an exception of `huggingface_hub`."""
    try:
        yield
    except EagleError:
        raise
    except Exception as error:
        lines = (_explanation(repository, cause) for cause in _causes(error))
        if line := next(filter(None, lines), None):
            raise HubError(f"{repository}: {line}") from error
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it wraps: the last one may have the reason."""
    while error is not None:
        yield error
        error = error.__cause__


def _explanation(repository: Repository, error: BaseException) -> str | None:
    """Return what went wrong and what to do; None for an exception of another kind."""
    from huggingface_hub import constants, errors

    url = f"{constants.ENDPOINT}/{repository.id}"
    # HTTPError of httpx or of httpx2, as this version of huggingface_hub uses.
    transport = errors.HfHubHTTPError.__mro__[1]
    match error:
        case errors.GatedRepoError():
            return f"gated: accept its licence at {url}, and {_log_in()}"
        case errors.DisabledRepoError():
            return f"disabled on the Hub: see {url}"
        case errors.RepositoryNotFoundError():
            return (
                f"neither a path here nor a repository on {constants.ENDPOINT}, unless a private "
                f"one: check the name, or {_log_in()}"
            )
        case errors.RevisionNotFoundError():
            return f"no such revision: {url}/commits lists them"
        case errors.HfHubHTTPError():
            return _explain_status(error.response.status_code)
        case errors.LocalTokenNotFoundError():
            return f"no token: {_log_in()}"
        case errors.OfflineModeIsEnabled():
            return (
                f"not complete in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set: "
                "unset it to download"
            )
        case _ if isinstance(error, transport):
            return (
                f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}): check the "
                "network and HF_ENDPOINT, and repeat the command: whole files are kept"
            )
        case errors.HFValidationError():
            return "not the name of a repository: expected ORG/NAME"
        case json.JSONDecodeError():
            return NO_HUB.format(constants.ENDPOINT)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return (
                f"the disk of {constants.HF_HUB_CACHE} is full: make room, or set HF_HOME to a "
                "directory on another disk, and repeat the command: whole files are kept"
            )
        case OSError() if "Consistency check failed" in str(error):
            return "a file arrived incomplete: repeat the command: whole files are kept"
        case OSError() if error.filename:
            return f"{error.filename}: {reason(error)}"
        case RuntimeError() | errors.XetDownloadError():
            return (
                f"the download failed ({str(error).splitlines()[0][:200]}): repeat the command; "
                "HF_HUB_DISABLE_XET=1 downloads without Xet"
            )
    return None


def _explain_status(status: int) -> str:
    """Return what a status of HTTP means here, and what to do."""
    if status == 429:
        return (
            "the Hub takes no more requests for now (429): wait some minutes and repeat the "
            f"command: whole files are kept; to be served more, {_log_in()}"
        )
    if status in (401, 403):
        return f"no permission ({status}): {_log_in()}"
    return f"the Hub answers {status}: repeat the command later: whole files are kept"


def _log_in() -> str:
    from huggingface_hub import get_token

    if get_token() is None:
        return "log in with `hf auth login` or set HF_TOKEN"
    return "log in with a token that has access (`hf auth login`, HF_TOKEN)"
