"""A tokenizer of made-up words, for artifacts of random weights, which have none."""

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
    """Yield the artifact, or a temporary copy with a tokenizer where it has none.

    The copy links the same files, next to the artifact.
    """
    if tokenizer_files(artifact):
        yield artifact
        return
    parent = artifact.resolve().parent
    with TemporaryDirectory(prefix=f"{artifact.name}-words-", dir=parent) as name:
        directory, manifest = Path(name), Manifest.read(artifact)
        for file in manifest.files:
            os.link(artifact / file, directory / file)
        write_tokenizer(directory, words_of(manifest))
        files = manifest.files | file_records(tokenizer_files(directory))
        replace(manifest, files=files).write(directory)
        yield directory


def words_of(manifest: Manifest) -> list[str]:
    """Return a word for each token."""
    count = manifest.constants["get_vocab_size"]
    assert isinstance(count, int)
    return [f"w{token}" for token in range(count)]


def write_tokenizer(directory: Path, words: list[str]) -> None:
    """Write a tokenizer of the words, and a chat template."""
    vocabulary = {word: token for token, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token=words[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(TEMPLATE)


def random_prompts(words: list[str], count: int, tokens: int) -> list[str]:
    """Return `count` prompts, the same each time."""
    rng = random.Random(1)
    return [" ".join(rng.choices(words, k=tokens)) for _ in range(count)]
