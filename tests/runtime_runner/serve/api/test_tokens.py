"""/tokenize and /detokenize give what transformers gives, and other paths are as clients expect."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from transformers import AutoTokenizer

from eagle_aot import __version__
from eagle_aot.runtime_runner.frontend.prompt_reader import PromptReader
from eagle_aot.targets.family import TINY_DIR
from support.full_service import PASSED, FullService

SHIPPED = TINY_DIR / "target"
THEIRS: Any = AutoTokenizer.from_pretrained(SHIPPED)
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
BEGUN = [*TURNS, {"role": "assistant", "content": "Tom"}]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """A server with two names and the shipped tokenizer, which takes no request."""
    reader = PromptReader(SHIPPED, None, 64)
    service = FullService(tokenizer=reader.tokenizer, served_model_name=("first", "second"))

    async def read(prompt: Any, *, raw: bool, **values: Any) -> Any:
        return reader.read(prompt, raw=raw, **values)

    service.model.tokenizer, service.model.read = reader.tokenizer, read
    with TestClient(service.app, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize(("body", "expected"), [
    ({"prompt": "Ada has 27"}, THEIRS("Ada has 27").input_ids),
    ({"content": "Ada has 27"}, THEIRS("Ada has 27").input_ids),
    ({"prompt": "Ada", "add_special_tokens": False},
     THEIRS("Ada", add_special_tokens=False).input_ids),
    ({"messages": TURNS},
     THEIRS.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)),
    ({"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False},
     THEIRS.apply_chat_template(BEGUN, continue_final_message=True, return_dict=False)),
])  # fmt: skip
def test_ids_are_those_of_transformers(
    client: TestClient, body: dict[str, Any], expected: list[int]
) -> None:
    answer = client.post("/tokenize", json={"model": "second", **body, "return_token_strs": True})
    assert answer.json() == {
        "tokens": expected,
        "count": len(expected),
        "max_model_len": 1024,
        "token_strs": THEIRS.convert_ids_to_tokens(expected),
    }
    text = client.post("/detokenize", json={"tokens": expected}).json()["prompt"]
    assert text == THEIRS.decode(expected)
    assert client.post("/tokenize", json=body).json()["token_strs"] is None


@pytest.mark.parametrize(("path", "body", "line"), [
    ("/tokenize", {}, "prompt or messages: give one of them"),
    ("/tokenize", {"prompt": "a", "messages": TURNS}, "prompt or messages: give one of them"),
    ("/tokenize", {"messages": TURNS, "add_special_tokens": True}, "add_special_tokens: the chat"),
    ("/tokenize", {"messages": TURNS, "continue_final_message": True}, "continue_final_message"),
    ("/tokenize", {"messages": TURNS, "tools": [{}]}, "tools.0"),
    ("/detokenize", {"tokens": [3, 99999]}, "tokens: 99999 is not in the vocabulary"),
    ("/detokenize", {"tokens": [-1]}, "tokens.0: Expected int >= 0"),
])  # fmt: skip
def test_wrong_ids_and_prompts_are_refused(
    client: TestClient, path: str, body: dict[str, Any], line: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(line)


def test_the_model_has_all_of_its_names(client: TestClient) -> None:
    cards = client.get("/v1/models").json()["data"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [
        ("first", 1024),
        ("second", 1024),
    ]
    assert client.get("/v1/models/second").json() == cards[1] == client.get("/models/second").json()
    assert client.get("/v1/models/third").status_code == 404
    for name in ("first", "second", None):
        body = {"model": name, "prompt": "a"}
        assert client.post("/v1/completions", json=body).status_code == PASSED
    assert client.post("/v1/completions", json={"model": "third", "prompt": ""}).status_code == 404


def test_paths_need_no_prefix(client: TestClient) -> None:
    assert client.post("/completions", json={"prompt": "a"}).status_code == PASSED
    assert client.post("/chat/completions", json={"messages": TURNS}).status_code == PASSED


def test_other_paths(client: TestClient) -> None:
    assert client.get("/ping").json() == {"status": "ok"}
    assert client.get("/version").json() == {"version": __version__}
    for path in ("/v1/embeddings", "/v1/messages", "/v1/chat/completions/input_tokens"):
        refused = client.post(path, json={})
        line = refused.json()["error"]["message"]
        assert refused.status_code == 404 and line.startswith(f"{path}: not served here: ")
        assert {"/v1/chat/completions", "/v1/completions", "/tokenize"} <= set(
            line.rpartition(": ")[2].split(", ")
        )
