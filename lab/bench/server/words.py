"""Words for artifacts of random weights, which have no tokenizer, and whose text is none."""

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import tokenizers
from msgspec.structs import replace
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from eagle_aot.artifact import Manifest, file_records, tokenizer_files

TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@contextmanager
def with_words(artifact: Path) -> Iterator[Path]:
    """The artifact, or where it has no tokenizer one of the same files with a word for each token,
    which for so long is beside it."""
    if tokenizer_files(artifact):
        yield artifact
        return
    beside = artifact.resolve().parent
    with TemporaryDirectory(prefix=f"{artifact.name}-words-", dir=beside) as name:
        directory, manifest = Path(name), Manifest.read(artifact)
        for file in manifest.files:
            os.link(artifact / file, directory / file)
        write_words(directory, words(manifest))
        files = manifest.files | file_records(tokenizer_files(directory))
        replace(manifest, files=files).write(directory)
        yield directory


def words(manifest: Manifest) -> list[str]:
    """One for each token."""
    count = manifest.constants["get_vocab_size"]
    assert isinstance(count, int)
    return [f"w{token}" for token in range(count)]


def write_words(directory: Path, every: list[str]) -> None:
    """A tokenizer of them, and a chat template."""
    numbers = {word: token for token, word in enumerate(every)}
    made = tokenizers.Tokenizer(WordLevel(numbers, unk_token=every[0]))
    made.pre_tokenizer = WhitespaceSplit()
    made.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(TEMPLATE)


def made_up(every: list[str], count: int, tokens: int) -> list[str]:
    """So many prompts, the same each time."""
    rng = random.Random(1)
    return [" ".join(rng.choices(every, k=tokens)) for _ in range(count)]
