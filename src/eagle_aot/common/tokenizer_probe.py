"""The first use of a tokenizer and a chat template, in a process with limits of time and memory.

Their files are programs for libraries: regular expressions, chains of replacements, templates. A
hostile one never ends, takes all memory or aborts the process. What has passed once is remembered
by its hash, so a later start only hashes the files.
"""

import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from eagle_aot.common.errors import ArtifactError, EagleError
from eagle_aot.common.prompts import Message
from eagle_aot.common.strict_json import read_object
from eagle_aot.common.text import one_line
from eagle_aot.common.tokenizer import SETTINGS, TEMPLATE, VOCABULARY, Tokenizer, library_errors

FILES = VOCABULARY, SETTINGS, TEMPLATE
CPU_SECONDS, WALL_SECONDS = 30, 120
MAX_MEMORY = 4 << 30
"""Bytes of addresses. The vocabulary of Gemma 4, 262,144 tokens, takes 0.6 GB."""
MAX_GROWTH = 64
"""Characters that a character of a text, or of a token's name, may become."""
MAX_TOKEN = 4096
"""Characters of a token of a text."""
ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
"""Threads would take addresses of the limit."""
TEXTS = (
    "".join(map(chr, range(32, 127))) + "\n\t\r é ß ﷺ — 中文字 한국어 عرب 😀👩\u200d👧\u0301",
    *(40 * text for text in ("a", "A", " ", "\n", "0", "!", "é", "中", "😀", "ab ", "a1.")),
)
CHATS: list[list[Message]] = [
    [{"role": "user", "content": "Who is Tom?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tom?"},
     {"role": "assistant", "content": "A friend."}, {"role": "user", "content": "And Ada?"}],
]  # fmt: skip


def check_tokenizer(directory: Path) -> None:
    """Use a directory's tokenizer in a process of its own, unless the same files passed before.

    Raises ArtifactError where a library fails on them, or does not end within the limits. Their
    meaning is not checked.
    """
    if not any((directory / name).is_file() for name in FILES):
        return
    passed = cache_directory() / fingerprint(directory)
    if passed.is_file():
        return
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, directory.absolute(), str(CPU_SECONDS)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=os.environ | ONE_THREAD,
            timeout=WALL_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ArtifactError(f"{directory}: the tokenizer takes over {WALL_SECONDS} s") from error
    if problem := problem_of(done):
        raise ArtifactError(f"{directory}: {problem}")
    with suppress(OSError):  # nowhere to remember it: the next start tries again
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()


def problem_of(done: "subprocess.CompletedProcess[bytes]") -> str:
    """Return what is wrong with a tokenizer, by how its process ended; empty if nothing is."""
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"the tokenizer takes over {CPU_SECONDS} s"
    if done.returncode == 1 and done.stdout:
        return one_line(done.stdout.decode(errors="replace"))
    if done.returncode:
        limit = f"{MAX_MEMORY >> 30} GiB of memory"
        return f"the tokenizer ends its process, or takes over {limit} ({-done.returncode})"
    return ""


def cache_directory() -> Path:
    """Return the directory of the hashes of what has passed."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = home if os.path.isabs(home) else os.devnull  # a user may have no home
    return Path(home) / "eagle-aot" / "tokenizers"


def fingerprint(directory: Path) -> str:
    """Return a hash of a tokenizer's files and of the libraries that read them."""
    libraries = (f"{name} {version(name)}" for name in ("eagle-aot", "tokenizers", "jinja2"))
    digest = hashlib.sha256(" ".join(libraries).encode())
    for path in (directory / name for name in FILES):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def main(directory: Path, cpu_seconds: int) -> None:
    """Use the tokenizer of a directory. Prints what is wrong with it, and exits with 1."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for template in templates(directory):
            use_template(template)
        vocabulary = directory / VOCABULARY
        if vocabulary.is_file() and (tokenizer := read_vocabulary(vocabulary)) is not None:
            use_tokenizer(tokenizer)
    except (EagleError, ValueError) as error:
        print(one_line(str(error)))
        sys.exit(1)
    except MemoryError:
        print(f"the tokenizer takes over {MAX_MEMORY >> 30} GiB of memory")
        sys.exit(1)


def templates(directory: Path) -> Iterator[str]:
    """Yield the chat templates of an artifact or a checkpoint."""
    if (directory / TEMPLATE).is_file():
        yield (directory / TEMPLATE).read_text("utf-8", errors="replace")
    with suppress(OSError, ValueError):
        stored = read_object(directory / SETTINGS).get("chat_template")
        named = stored if isinstance(stored, list) else [{"template": stored}]
        texts = [template.get("template") for template in named if isinstance(template, dict)]
        yield from (text for text in texts if isinstance(text, str))


def use_template(template: str) -> None:
    """Render conversations. Raises ArtifactError where a template takes too many steps or too much
    memory; it may refuse a conversation."""
    from jinja2.exceptions import SecurityError  # slow to import

    from eagle_aot.common.templates.chat_template import ChatTemplate

    for chat in CHATS:
        try:
            ChatTemplate(template).render(messages=chat, add_generation_prompt=True)
        except (SecurityError, RecursionError) as error:
            raise ArtifactError(f"the chat template cannot be rendered ({error})") from error
        except MemoryError:
            raise
        except Exception:  # its own: it may refuse a role, or need a token that is not given here
            continue


def read_vocabulary(path: Path) -> Tokenizer | None:
    """Return the tokenizer in a file; None for one that cannot be read, which readers report.
    Raises ArtifactError where the library panics."""
    from tokenizers import Tokenizer as Backend

    with suppressed_exceptions(), library_errors("the tokenizer cannot be read"):
        return Tokenizer(Backend.from_buffer(path.read_bytes()), {}, None)
    return None


def use_tokenizer(tokenizer: Tokenizer) -> None:
    """Encode texts, and decode every token. Raises ArtifactError where the library panics, and
    where text grows more than `MAX_GROWTH` times; a request reports the library's exceptions."""
    backend = tokenizer.backend
    for text in TEXTS:
        with suppressed_exceptions():
            ids = tokenizer.ids(text)
            check_growth("encodes", len(text), len(ids))
            check_growth("decodes", len(ids), len(tokenizer.decode(ids)), MAX_TOKEN)
            if backend.normalizer is not None:
                check_growth("normalizes", len(text), len(backend.normalizer.normalize_str(text)))
    for piece, token in backend.get_vocab().items():
        for ids in ([token], [token, token]):
            with suppressed_exceptions():
                text = tokenizer.decode(ids, skip_special_tokens=False)
                check_growth("decodes", len(ids) * len(piece), len(text))


@contextmanager
def suppressed_exceptions() -> Iterator[None]:
    """Suppress an ArtifactError that has an exception of the library as its cause, not a panic."""
    try:
        yield
    except ArtifactError as error:
        if isinstance(error.__cause__, MemoryError):
            raise MemoryError from error
        if not isinstance(error.__cause__, Exception):
            raise


def check_growth(what: str, length: int, result: int, most: int = MAX_GROWTH) -> None:
    """Raise ArtifactError for a text that becomes more than `most` times as long."""
    if result > most * (length + 1):
        raise ArtifactError(f"the tokenizer {what} {length} characters to {result}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
