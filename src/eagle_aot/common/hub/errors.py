"""Exceptions of `huggingface_hub` as one line that says what to do."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager

from eagle_aot.common.errors import EagleError, HubError, reason
from eagle_aot.common.hub.repository import Repository

NO_HUB = "{} does not answer as a Hub does: check HF_ENDPOINT and the network"


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
