"""Images in requests to a server: as OpenAI's clients send them, and refused in words."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.service import LocalService
from eagle_aot.runtime_runner.serve.spec import ServeSpec
from support.images import drawn, stored

TEXT, COUNT = "What is this?", 12
FILE = stored(drawn(100, 80))


@pytest.fixture(scope="module")
def wanted(image_runner: Runner) -> Result:
    """Plain decoding's answer, before a thread of the server has the engine."""
    return image_runner.generate(TEXT, COUNT, speculate=False, images=[FILE])


@pytest.fixture(scope="module")
def client(image_runner: Runner, wanted: Result) -> Iterator[TestClient]:
    service = LocalService(
        image_runner, ServeSpec(artifact=image_runner.directory, served_model_name=("tiny",))
    )
    service.worker.start()
    with TestClient(make_app(service), base_url="http://localhost") as client:
        yield client
    service.worker.close()


def request_body(url: str, **image: Any) -> dict[str, Any]:
    """Return a request whose turn is an image and a text after it."""
    parts = [
        {"type": "image_url", "image_url": {"url": url, **image}},
        {"type": "text", "text": TEXT},
    ]
    turns = [{"role": "user", "content": parts}]
    return {"model": "tiny", "messages": turns, "temperature": 0, "max_tokens": COUNT}


def data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def test_an_image_in_a_request_is_answered(client: TestClient, wanted: Result) -> None:
    for detail in ("auto", "low", "high"):
        answer = client.post(
            "/v1/chat/completions", json=request_body(data_url(FILE), detail=detail)
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["choices"][0]["message"]["content"] == wanted.text
        assert body["usage"]["prompt_tokens"] == wanted.prompt_tokens
    streamed = client.post(
        "/v1/chat/completions", json={**request_body(data_url(FILE)), "stream": True, "n": 2}
    )
    assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(("url", "words"), [
    ("https://example.org/a.png", "nothing is fetched"),
    ("/etc/passwd", "nothing is fetched"),
    ("data:image/png;base64,AAAA", "not an image in PNG, JPEG, WEBP"),
    (data_url(FILE[:500]), "cannot be read"),
])  # fmt: skip
def test_a_wrong_image_is_refused(client: TestClient, url: str, words: str) -> None:
    answer = client.post("/v1/chat/completions", json=request_body(url))
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert words in message and "\n" not in message


def test_only_users_turns_have_images(client: TestClient) -> None:
    body = request_body(data_url(FILE))
    body["messages"] = [{**body["messages"][0], "role": "system"}, {"role": "user", "content": "?"}]
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and "an image in a turn of the system" in answer.text
