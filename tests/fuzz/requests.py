"""Requests to a server: valid by its OpenAPI schema, nearly valid, and arbitrary."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Json = Mapping[str, Any]
Values = st.SearchStrategy[Any]

JSON = "application/json"
TYPES = [JSON] * 30 + [None, "", "text/plain", "application/json; charset=utf-16", "a/b+json",
                       "multipart/form-data", "application/x-www-form-urlencoded"]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"]
PATHS = [
    "/", "/health", "/ping", "/version", "/metrics", "/tokenize", "/openapi.json", "/docs",
    "/v1", "/v1/", "/v1/models",
    "/v1/models/tiny", "/v1/models/../../etc/passwd", "/v1/models/%00%ff", "/v1/embeddings",
    "/v1/chat/completions", "/v1/chat/completions/", "//v1/completions", "/V1/COMPLETIONS",
    "/page", "/page/", "/page/index.html", "/page/../app.py", "/page/%2e%2e/%2e%2e/app.py",
    "/page/..%5c..%5capp.py", "/%F0%9F%92%A9?n=1#2", "/" + "a" * 9_000,
]  # fmt: skip

WHOLE = st.sampled_from([-(2**63) - 1, -1, 0, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**400])
NUMBERS = st.one_of(
    st.integers(-3, 20),
    st.floats(0, 2),
    WHOLE,
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308, 0.5, True]),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "\0", "\ud800", "\udc00\ud800", "\u202e", "auto", "1", "NaN", "1e999",
                     "<|turn>user\n", "{{ 7 * 7 }}", "/etc/passwd", "1,1,1", "999,999,999", "²,1,1",
                     "a" * 1025, "word " * 3000, "é" * 20_000]),
)  # fmt: skip
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@dataclass(frozen=True)
class HttpRequest:
    """A request; `path` and `content` are sent as they are."""

    method: str
    path: str
    content: bytes
    content_type: str | None = JSON


def of_schema(schema: Json, components: Json) -> Values:
    """Return values of a JSON schema's types, of any size."""
    if "$ref" in schema:
        return of_schema(components[schema["$ref"].rpartition("/")[2]], components)
    if "anyOf" in schema:
        return st.one_of([of_schema(option, components) for option in schema["anyOf"]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    if "type" not in schema:
        return ANYTHING
    if schema["type"] == "array":
        return st.lists(of_schema(schema["items"], components), max_size=3)
    if schema["type"] == "object":
        return of_object(schema, components)
    whole = st.integers(-3, 20) | WHOLE
    text = st.from_regex(schema["pattern"]) if "pattern" in schema else TEXTS
    plain = {"integer": whole, "number": NUMBERS, "string": text, "boolean": st.booleans()}
    return plain.get(schema["type"], st.none())


def of_object(schema: Json, components: Json) -> Values:
    """Return objects with all required properties and some of the others."""
    if "properties" not in schema:
        keys = st.integers(-1, 1100).map(str) | TEXTS
        return st.dictionaries(keys, of_schema(schema.get("additionalProperties", {}), components))
    properties = schema["properties"].items()
    optional = {name: of_schema(part, components) for name, part in properties}
    required = {name: optional.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=optional)


@st.composite
def bodies(draw: st.DrawFn, good: Json, schema: Json, components: Json) -> bytes:
    """Return a valid body with a few parameters changed, left out or added."""
    body = dict(good)
    for name in draw(st.lists(st.sampled_from(sorted(schema["properties"])), max_size=3)):
        alike = of_schema(schema["properties"][name], components)
        body[name] = draw(st.one_of(alike, alike, ANYTHING))
    if draw(st.integers(0, 9)) == 0:
        body.pop(draw(st.sampled_from(sorted(body))))
    if draw(st.integers(0, 9)) == 0:
        body[draw(TEXTS)] = draw(ANYTHING)
    return json.dumps(body, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Return a body cut off, with bytes changed, or in another encoding."""
    content = draw(whole)
    at = draw(st.integers(0, len(content)))
    kind = draw(st.sampled_from(["cut", "changed", "twice", "utf-16", "bom"]))
    if kind == "cut":
        return content[:at]
    if kind == "changed":
        return content[:at] + draw(st.binary(max_size=4)) + content[at + 1 :]
    if kind == "twice":
        return content * 2
    encoding = "utf-16" if kind == "utf-16" else "utf-8-sig"
    return content.decode(errors="replace").encode(encoding)


MADE_UP = [
    b"", b"null", b"[]", b"{}", b'""', b"0", b"\xff\xfe", b"\0", b"NaN", b"[" * 60_000,
    b'{"a":' * 12_000, b'{"seed": 1' + b"0" * 5000 + b"}", b'{"seed": 1e' + b"9" * 400 + b"}",
    b"a" * 70_000, b'{"model": 1, "model": "tiny"}', b"--x\r\n\r\n", b"model=tiny&prompt=a",
]  # fmt: skip
"""Bodies that mutations do not produce."""


def requests(openapi: Json, good: Mapping[str, Json]) -> st.SearchStrategy[HttpRequest]:
    """Return requests to an application with this schema; `good` has a valid body for each path
    that takes one."""
    components = openapi["components"]["schemas"]
    posts: list[st.SearchStrategy[HttpRequest]] = []
    for path, body in good.items():
        described = openapi["paths"][path]["post"]["requestBody"]["content"][JSON]["schema"]
        schema = components[described["$ref"].rpartition("/")[2]]
        nearly = bodies(body, schema, components)
        contents = st.one_of(nearly, nearly, nearly, damaged(nearly), st.sampled_from(MADE_UP))
        types = st.sampled_from(TYPES)
        posts.append(st.builds(HttpRequest, st.just("POST"), st.just(path), contents, types))
    elsewhere = st.builds(
        HttpRequest, st.sampled_from(METHODS), st.sampled_from(PATHS), st.sampled_from(MADE_UP)
    )
    return st.one_of(*posts, *posts, elsewhere)
