"""Tokenizers of GGUF files, compared with llama.cpp."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.export.loading.tokenizer import convert_tokenizer
from eagle_aot.targets.bare_gguf import read_bare
from eagle_aot.targets.checkpoint import tokenizer_directory
from support.files.gguf import CONTROL, NORMAL, GgufModel
from support.pre_norm_oracle import random_pre_norm

USER_DEFINED, BYTE = 4, 6
SPECIAL = ["<s>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[tool]"]
SPECIAL_TYPES = [CONTROL, CONTROL, CONTROL, USER_DEFINED]
MERGES = ["Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "t h", "th e", "1 2", "12 3", "Ġ t", "Ġt h", "i n", "' s"]
WHOLE_WORD = "Ġword"
"""No merges make this token: it is found by looking a whole word up."""
PIECES = ["▁", "▁▁", "▁the", "the", "th", "he", "t", "h", "e", "▁t", "in", "i", "n", "1", "2", "12"]
TEXTS = st.lists(
    st.sampled_from(["the", " word", "in", "'s", "'S", " ", "  ", "\n", "\t", "\r\n", "1", "23",
                     "é", "中", "😀", "!", "...", "_", "㊋", "<unk>", "<0x41>", "▁", "Ġ", "\u00a0",
                     *SPECIAL]),
    min_size=1,
    max_size=12,
).map("".join)  # fmt: skip
BYTE_LEVEL = ("llama-bpe", "qwen2", "gpt-2", "smollm", "refact", "deepseek-coder")
SERVER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], 64, 1
params.warmup, params.verbosity = False, -1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
"""llama.cpp needs a process without executorch: both have C++ libraries that do not mix."""
PREFIXES = {"space": True, "no space": False, "unset": None}


def write_model(
    path: Path, kind: str, tokens: Sequence[str], types: Sequence[int], keys: dict[str, Any]
) -> Path:
    """Write a model of random weights with a tokenizer of `kind` and these `keys`."""
    size = {"hidden_size": 64, "intermediate_size": 96}
    model = random_pre_norm("llama", vocab_size=len(tokens), **size)
    file = GgufModel(path, "llama", layers=model.config.num_hidden_layers)
    file.write_geometry(model.config)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":
            file.add(name, weight, Type.F32)
    writer = file.writer
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for key, value in keys.items():
        match value:
            case bool():
                writer.add_bool(f"tokenizer.ggml.{key}", value)
            case str():
                writer.add_string(f"tokenizer.ggml.{key}", value)
            case list():
                writer.add_array(f"tokenizer.ggml.{key}", value)
    file.close()
    return path


def write_byte_level(path: Path, pre: str | None, **keys: Any) -> Path:
    merged = [merge.replace(" ", "") for merge in MERGES]
    words = [*sorted(bytes_to_unicode().values()), *merged, WHOLE_WORD]
    types = SPECIAL_TYPES + [NORMAL] * len(words)
    keys = {"merges": MERGES} | ({} if pre is None else {"pre": pre}) | keys
    return write_model(path, "gpt2", [*SPECIAL, *words], types, keys)


def write_sentencepiece(path: Path, **keys: Any) -> Path:
    tokens = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    types = [*SPECIAL_TYPES, 2, *[BYTE] * 256, *[NORMAL] * len(PIECES)]
    scores = [0.0] * (len(tokens) - len(PIECES)) + [-float(i) for i in range(len(PIECES))]
    named = {"scores": scores} | {key: value for key, value in keys.items() if value is not None}
    path = write_model(path, "llama", tokens, types, named)
    return path


@pytest.fixture(scope="module", params=[*BYTE_LEVEL, *PREFIXES])
def tokenizers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tokenizer, httpx.Client]]:
    """Our tokenizer of a file, and llama.cpp's server of it."""
    if find_spec("xllamacpp") is None:
        pytest.skip("needs xllamacpp")
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    if request.param in BYTE_LEVEL:
        write_byte_level(path, request.param)
    else:
        write_sentencepiece(path, add_space_prefix=PREFIXES[request.param])
    command = [sys.executable, "-c", SERVER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        with httpx.Client(base_url=server.stdout.readline().strip()) as client:
            yield convert_tokenizer(tokenizer_directory(path)), client
        server.kill()


def ids_of_llama_cpp(client: httpx.Client, text: str) -> list[int]:
    body = {"content": text, "add_special": True, "parse_special": True}
    ids: list[int] = client.post("/tokenize", json=body).json()["tokens"]
    return ids


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS)
def test_ids_are_those_of_llama_cpp(tokenizers: tuple[Tokenizer, httpx.Client], text: str) -> None:
    ours, client = tokenizers
    assert ours.ids(text) == ids_of_llama_cpp(client, text)


@pytest.mark.parametrize(("pre", "keys", "message"), [
    ("deepseek-llm", {}, r"model\.gguf: pre-tokenizer 'deepseek-llm' is not read: put its"),
    (None, {}, r"model\.gguf: names no pre-tokenizer: put its model's"),
    ("gpt-2", {"add_eos_token": True}, r"tokenizer\.ggml\.add_eos_token is not read"),
    ("gpt-2", {"add_bos_token": "false"}, r"tokenizer\.ggml\.add_bos_token is not read"),
    ("gpt-2", {"precompiled_charsmap": "x"}, r"ggml\.precompiled_charsmap is not read"),
])  # fmt: skip
def test_unread_settings_that_would_change_ids_are_refused(
    tmp_path: Path, pre: str | None, keys: dict[str, Any], message: str
) -> None:
    path = write_byte_level(tmp_path / "model.gguf", pre, **keys)
    with pytest.raises(UnsupportedError, match=message):
        tokenizer_directory(path)


def test_keys_that_change_no_ids_are_accepted(tmp_path: Path) -> None:
    path = write_byte_level(tmp_path / "model.gguf", "gpt-2", add_eos_token=False)
    assert convert_tokenizer(tokenizer_directory(path)).ids("the")


@pytest.mark.parametrize(("keys", "message"), [
    ({"merges": ["t h", "no merge"]}, r"model\.gguf: its tokenizer is damaged \("),
    ({"merges": ["t"]}, r"model\.gguf: its tokenizer is damaged \("),
])  # fmt: skip
def test_merges_that_contradict_the_vocabulary_are_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = write_byte_level(tmp_path / "model.gguf", "gpt-2", **keys)
    with pytest.raises(CheckpointError, match=message):
        tokenizer_directory(path)


def test_a_token_whose_merges_would_take_minutes_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "llama", ["<s>", "</s>", "a" * 9999],
                       [CONTROL, CONTROL, NORMAL], {"scores": [0.0, 0.0, 0.0]})  # fmt: skip
    with pytest.raises(CheckpointError, match=r"model\.gguf: a token of 9999 characters"):
        tokenizer_directory(path)


def test_control_tokens_that_end_a_text_are_stop_ids(tmp_path: Path) -> None:
    path = write_byte_level(tmp_path / "model.gguf", "gpt-2")
    assert read_bare(path).stop_ids == [1, 2], "the key's, and the end of a sentence"


def test_a_raw_text_that_begins_with_bos_gets_no_second_one(tmp_path: Path) -> None:
    tokenizer = convert_tokenizer(
        tokenizer_directory(write_byte_level(tmp_path / "model.gguf", "llama-bpe"))
    )
    once = tokenizer.encode("the", raw=True)
    assert once[0] == 0 and tokenizer.encode("<s>the", raw=True) == once
    assert tokenizer.encode("<s><s>the", raw=True) == [0, *once], "the prompt's own two"
    assert tokenizer.encode("<s>", raw=True) == [0]
