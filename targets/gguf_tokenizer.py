"""The tokenizer that a GGUF file describes, built as llama.cpp reads it.

A file has the vocabulary and the name of a pre-tokenizer, whose rules are in llama.cpp's source.
What changes the ids of a text is read here or refused.
Source: llama.cpp `src/llama-vocab.cpp`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from eagle_aot.common.errors import CheckpointError, EagleError, UnsupportedError
from eagle_aot.common.tokenizer import PANIC
from eagle_aot.targets.weight_files.gguf_file import GgufFile, TokenType

PREFIX = "tokenizer.ggml."
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
BLANK = "\u2581"
"""What SentencePiece writes for a blank."""

MAX_CHARACTERS = 1024
"""Of a token; the time to find its merges grows with the square of their number."""
FLAGS = {"add_space_prefix", "add_bos_token"}
READ_KEYS = {"model", "pre", "tokens", "token_type", "scores", "merges"}
REFUSED_UNLESS = {"add_eos_token": False, "add_sep_token": False, "remove_extra_whitespaces": False,
                  "token_type_count": 0}  # fmt: skip
"""Keys that change ids, and the value that changes none."""

LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2: Final = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT: Final = r"\p{N}"
CJK: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
LLAMA3_NAMES = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
                "lfm2")  # fmt: skip
"""These add a BOS token unless the file says otherwise, and look whole words up before merging."""
SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LLAMA3_NAMES, (LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2"), (QWEN2,)),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "gigachat", "roberta-bpe"), (GPT2,)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        (DIGIT, GPT2),
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGIT),
}
"""The expressions that split a text, one after the other, by the pre-tokenizer's name."""


def write_tokenizer(file: GgufFile, directory: Path, way_out: str) -> None:
    """Write tokenizer.json, its settings and the chat template into a new `directory`.

    Raises CheckpointError for a vocabulary that contradicts itself, and UnsupportedError for one
    that is not read here; both lines end with `way_out`.
    """
    kind = file.field(f"{PREFIX}model")
    if kind not in BUILDERS:
        supported = ", ".join(BUILDERS)
        raise UnsupportedError(f"{file.path}: tokenizer {kind!r}: known are {supported}: {way_out}")
    _check_keys(file, way_out)
    vocabulary = Vocabulary(file)
    try:
        backend = BUILDERS[kind](file, vocabulary, way_out)
    except EagleError:
        raise
    except BaseException as error:  # those of `tokenizers` have no type, and panics no class
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise CheckpointError(
            f"{file.path}: its tokenizer is damaged ({error}): {way_out}"
        ) from error
    for kind in (TokenType.CONTROL, TokenType.UNKNOWN):
        backend.add_special_tokens(list(vocabulary.added(kind)))
    backend.add_tokens(list(vocabulary.added(TokenType.USER_DEFINED)))
    bos = vocabulary.special("bos_token_id")
    if bos is not None and adds_bos(file):
        single = [bos, "$A"]
        backend.post_processor = TemplateProcessing(
            single=single, pair=[*single, "$B"], special_tokens=[(bos, vocabulary.ids[bos])]
        )
    directory.mkdir()
    backend.save(str(directory / "tokenizer.json"))
    names = {"bos_token": bos, "eos_token": vocabulary.special("eos_token_id"),
             "unk_token": vocabulary.special("unknown_token_id"),
             "pad_token": vocabulary.special("padding_token_id")}  # fmt: skip
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {name: token for name, token in names.items() if token is not None}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    template = file.field("tokenizer.chat_template")
    if template is not None:
        (directory / "chat_template.jinja").write_text(template, "utf-8")


class Vocabulary:
    """The tokens of a file by id, their types, and their ids by text."""

    def __init__(self, file: GgufFile) -> None:
        """Raises CheckpointError where the lists contradict one another."""
        self._file = file
        self.tokens: Sequence[str] = file.field(f"{PREFIX}tokens")
        types = file.field(f"{PREFIX}token_type")
        self.types: Sequence[int] = [1] * len(self.tokens) if types is None else types
        if len(self.types) != len(self.tokens):
            raise CheckpointError(
                f"{file.path}: {len(self.tokens)} tokens and {len(self.types)} token types"
            )
        longest = max(map(len, self.tokens), default=0)
        if longest > MAX_CHARACTERS:
            raise CheckpointError(f"{file.path}: a token of {longest} characters")
        self.ids = {token: number for number, token in enumerate(self.tokens)}

    def special(self, key: str) -> str | None:
        """Return the token that a key names by its id, None if the file has no such key."""
        number = self._file.field(PREFIX + key)
        if number is None:
            return None
        if not 0 <= number < len(self.tokens):
            raise CheckpointError(
                f"{self._file.path}: {PREFIX}{key} is {number}: there are {len(self.tokens)} tokens"
            )
        return self.tokens[number]

    def added(self, kind: int) -> Iterator[AddedToken]:
        """Yield the tokens of a type, as tokens that are matched whole in a text."""
        for token, of_kind in zip(self.tokens, self.types, strict=True):
            if of_kind == kind and token:
                yield AddedToken(token, normalized=False, special=kind != TokenType.USER_DEFINED)


def adds_bos(file: GgufFile) -> bool:
    """Whether every text begins with a BOS token."""
    flag = file.field(f"{PREFIX}add_bos_token")
    if flag is not None:
        return bool(flag)
    is_sentencepiece = file.field(f"{PREFIX}model") == SENTENCEPIECE
    return is_sentencepiece or file.field(f"{PREFIX}pre") in LLAMA3_NAMES


def _byte_level(file: GgufFile, vocabulary: Vocabulary, way_out: str) -> Tokenizer:
    pre = file.field(f"{PREFIX}pre")
    if pre not in SPLITS:
        what = "names no pre-tokenizer" if pre is None else f"pre-tokenizer {pre!r} is not read"
        raise UnsupportedError(f"{file.path}: {what}: {way_out}")
    merges = [tuple(merge.split(" ")) for merge in file.field(f"{PREFIX}merges") or ()]
    backend = Tokenizer(BPE(vocabulary.ids, merges, ignore_merges=pre in LLAMA3_NAMES))
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in SPLITS[pre]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(file: GgufFile, vocabulary: Vocabulary, way_out: str) -> Tokenizer:
    scores = file.field(f"{PREFIX}scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise CheckpointError(f"{file.path}: not one score for each token: {way_out}")
    merges = merges_of_scores(vocabulary.ids, scores)
    unknown = vocabulary.special("unknown_token_id")
    backend = Tokenizer(
        BPE(vocabulary.ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    has_prefix = file.field(f"{PREFIX}add_space_prefix") is not False
    blanks = normalizers.Replace(" ", BLANK)
    prefix = [normalizers.Prepend(BLANK)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, blanks])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def merges_of_scores(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the merges of two tokens into a third, the third with the best score first."""
    ranked = []
    for token, number in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[number], ids[left], ids[right], (left, right)))
    return [pair for *_, pair in sorted(ranked)]


BUILDERS = {BYTE_LEVEL: _byte_level, SENTENCEPIECE: _sentencepiece}


def _check_keys(file: GgufFile, way_out: str) -> None:
    """Raise UnsupportedError for a key that may change ids and is not read here."""
    for name in file.metadata_keys():
        key = name.removeprefix(PREFIX)
        if key == name or key in READ_KEYS or key.endswith("_token_id"):
            continue
        value: Any = file.field(name)
        if key in FLAGS and isinstance(value, bool):
            continue
        if key not in REFUSED_UNLESS or value != REFUSED_UNLESS[key]:
            raise UnsupportedError(f"{file.path}: {name} is not read: {way_out}")
