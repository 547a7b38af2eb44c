"""`eagle-serve`: its options, and what it logs before it listens."""

import json
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from eagle_aot.common.errors import ArtifactError, SettingError
from eagle_aot.runtime_runner.engine.warm_up import WarmUp
from eagle_aot.runtime_runner.sampling.parameters import GENERATION_CONFIG
from eagle_aot.runtime_runner.serve.api.requests import CompletionRequest
from eagle_aot.runtime_runner.serve.cli import bind, load, main
from eagle_aot.runtime_runner.serve.spec import ServeSpec, parse_sampling_defaults
from support.refusals import refuses

OPTIONS = {
    "artifact", "--host", "--port", "--served-model-name", "--api-key-file", "--max-waiting",
    "--request-timeout", "--max-body", "--prompt-share", "--no-reuse", "--drafter", "--executor",
    "--replicas", "--no-warm-up", "--version", "--allowed-host", "--allow-origin",
    "--share-prefixes", "--strict", "--sampling-defaults", "--tool-call-parser",
    "--kv-cache-memory",
}  # fmt: skip


class OpenedArtifact:
    def adaptive_schedule(self, trees: bool) -> None:
        pass

    def warm_up(self, chain_len: str) -> WarmUp:
        return WarmUp(rounds=3, recorded=3, seconds=0.1, bytes=None)


def test_the_options_are_frozen() -> None:
    assert {opt for param in main.params for opt in param.opts} == OPTIONS


def test_options_reach_the_settings_and_the_engine(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\n\nsecond\n")
    spec = ServeSpec(
        artifact=tmp_path / "tiny", api_key_file=keys, no_reuse=True, kv_cache_memory=1.5
    )
    assert (spec.model_names, spec.read_keys()) == (("tiny",), ("first", "second"))
    assert spec.load_options == {
        "executor": "auto",
        "cache_memory": 3 << 29,
        "drafter": None,
        "prompt_share": 0.45,
        "reuse": False,
    }


@pytest.mark.parametrize(("options", "line"), [
    (["--api-key-file", "none"], "--api-key-file none: cannot be read"),
    (["--api-key-file", "/dev/zero"], "--api-key-file /dev/zero: cannot be read (neither a file"),
    (["--host", "no such host"], "no such host:8000: cannot be listened on"),
    (["--request-timeout", "0"], "--request-timeout 0.0: must be a number"),
])  # fmt: skip
def test_options_that_cannot_be_used_are_refused(options: list[str], line: str) -> None:
    refuses(CliRunner().invoke(main, ["artifact", *options]), line)


@pytest.mark.parametrize(("text", "line"), [
    ("none", "must be model, openai or a JSON object of numbers"),
    ('{"top": 1}', r"has top; did you mean top_p\?"),
    ('{"top_k": 1.5}', "top_k 1.5"),
    ('{"top_p": 2}', "top_p 2"),
])  # fmt: skip
def test_sampling_defaults_that_cannot_be_used_are_refused(text: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        parse_sampling_defaults(text)


def test_requests_sample_as_the_makers_of_the_model_recommend(tmp_path: Path) -> None:
    """Unless the server is started with other values; a request's own replace them."""
    file = tmp_path / GENERATION_CONFIG
    file.write_text(json.dumps({"do_sample": True, "top_k": 64, "top_p": 0.95}))
    makers = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}
    given = parse_sampling_defaults('{"temperature": 0.7, "top_k": 5}')
    cases: list[tuple[Any, dict[str, Any]]] = [
        ("model", makers), ("openai", {"temperature": 1}), (given, {"temperature": 0.7, "top_k": 5})
    ]  # fmt: skip
    for value, expected in cases:
        spec = ServeSpec(artifact=tmp_path, sampling_defaults=value)
        assert spec.sampling_defaults_of(tmp_path) == expected
    request = msgspec.convert({"prompt": "a", "top_k": 3}, CompletionRequest)
    (params,) = request.parameters(64, "", makers)
    assert (params.temperature, params.top_k, params.top_p) == (1, 3, 0.95)
    file.write_text(json.dumps({"do_sample": True, "top_p": 7}))
    with pytest.raises(ArtifactError, match=r"top_p 7.*: start with --sampling-defaults openai"):
        ServeSpec(artifact=tmp_path).sampling_defaults_of(tmp_path)


def test_a_file_without_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n")
    result = CliRunner().invoke(main, ["artifact", "--api-key-file", str(tmp_path / "keys")])
    refuses(result, "keys: has no keys")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("replicas", [[], ["--replicas", "2"]])
def test_a_port_in_use_is_noticed_before_the_artifact_is_opened(
    host: str, replicas: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        options = ["artifact", "--host", host, "--port", str(port), *replicas]
        result = CliRunner().invoke(main, options)
    refuses(result, f"{host}:{port}: cannot be listened on (Address already in use)")


def test_a_bound_server_refuses_clients_until_it_listens() -> None:
    (listener,) = bind(ServeSpec(artifact=Path("artifact"), port=0))
    with listener:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname())
        listener.listen()
        socket.create_connection(listener.getsockname()).close()


def test_all_addresses_of_a_host_have_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{i}", 0)) for i in (1, 2)]
    monkeypatch.setattr("socket.getaddrinfo", lambda *arguments, **options: infos)
    first, second = bind(ServeSpec(artifact=Path("artifact"), port=0))
    with first, second:
        assert first.getsockname()[1] == second.getsockname()[1] != 0
        assert second.getsockname()[0] == "127.0.0.2"


def test_an_address_that_the_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's localhost may have ::1 where there is no IPv6."""
    lacking, here = ("192.0.2.1", 0), ("127.0.0.1", 0)
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in (lacking, here)]
    monkeypatch.setattr("socket.getaddrinfo", lambda *arguments, **options: infos)
    (listener,) = bind(ServeSpec(artifact=Path("artifact"), port=0))
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    infos.pop()
    with pytest.raises(SettingError, match="cannot be listened on"):
        bind(ServeSpec(artifact=Path("artifact"), port=0))


def test_the_log_says_what_is_loaded_before_it_is(tmp_path: Path) -> None:
    """Lines of the log are on stderr, the refusal after them."""
    result = CliRunner().invoke(main, [str(tmp_path), "--port", "0"])
    first, *_ = result.stderr.splitlines()
    assert json.loads(first)["message"] == f"loading {tmp_path} for http://127.0.0.1:0"
    assert result.exit_code == 1 and "not an artifact" in result.stderr


def test_the_log_says_what_warming_up_took(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load_artifact(artifact: Path, **options: Any) -> OpenedArtifact:
        return OpenedArtifact()

    monkeypatch.setattr("eagle_aot.runtime_runner.load.load_artifact", load_artifact)
    with caplog.at_level("INFO"):
        load(ServeSpec(artifact=Path("artifact")))
    assert caplog.messages == ["warm-up: 3 rounds in 0.1 s, 3 of them recorded"]
    assert capsys.readouterr().err == ""
