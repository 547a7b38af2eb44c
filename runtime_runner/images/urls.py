"""Pictures within a request, as OpenAI's API has them: `data:` URLs. Nothing is ever fetched."""

import base64
import binascii

from eagle_aot.common.errors import PromptError

DATA = "data:"
ELSEWHERE = ("http:", "https:", "file:", "ftp:")
SHOWN = 40  # characters


def is_url(text: str) -> bool:
    """Whether a text names a picture by a URL, and not by a file's name."""
    return text[:SHOWN].lower().startswith((DATA, *ELSEWHERE))


def content_of(url: str) -> bytes:
    """The bytes in a `data:` URL. Raises PromptError for any other and for damaged ones."""
    head, comma, body = url.partition(",")
    if not head.lower().startswith(DATA) or not comma:
        raise PromptError(
            f"image_url {url[:SHOWN]!r}: nothing is fetched: send data:image/png;base64,..."
        )
    if not head.lower().endswith(";base64"):
        raise PromptError(f"image_url {head[:SHOWN]!r}: must be base64")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PromptError(f"image_url: not base64 ({error})") from error
