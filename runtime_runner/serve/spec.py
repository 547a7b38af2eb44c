"""The options of `eagle-serve`. Imports no torch."""

from pathlib import Path
from typing import Annotated, Any, Literal

from eagle_aot.common.errors import SettingError, reason
from eagle_aot.common.files import read_small
from eagle_aot.common.spec import Option
from eagle_aot.runtime_runner.spec import ENGINE, ArtifactSpec

MAX_KEY_BYTES = 1 << 20
SERVER = "Server"
ToolCallParser = Literal["gemma4", "hermes", "llama3_json", "qwen3_xml"]


class ServeSpec(ArtifactSpec, kw_only=True, frozen=True):
    """The options of `eagle-serve`."""

    host: Annotated[str, Option("Address to listen on; 0.0.0.0 for all.", SERVER)] = "127.0.0.1"
    port: Annotated[int, Option("Port to listen on.", SERVER, least=0, most=65535)] = 8000
    served_model_name: Annotated[tuple[str, ...], Option(
        "The model's name in requests; may be repeated, responses have the first. Default: the "
        "name of the directory or repository.", SERVER, "NAME")] = ()  # fmt: skip
    api_key_file: Annotated[Path | None, Option(
        "API keys, one a line; a request must have one of them.", SERVER,
        "FILE")] = None  # fmt: skip
    tool_call_parser: Annotated[ToolCallParser | None, Option(
        "The form of tool calls; default: that of the chat template. With hermes, models whose "
        "template knows no tools read of them in the system's text.", SERVER,
        "NAME")] = None  # fmt: skip
    max_waiting: Annotated[int, Option(
        "Requests that may wait; more get status 429.", SERVER, "N", least=0)] = 64  # fmt: skip
    request_timeout: Annotated[float, Option(
        "Seconds from a request to the end of its answer.", SERVER, "S",
        least=1e-3)] = 600.0  # fmt: skip
    max_body: Annotated[int | None, Option(
        "Bytes of a request; default: enough for the context.", SERVER, "BYTES",
        least=1024)] = None  # fmt: skip
    allowed_host: Annotated[tuple[str, ...], Option(
        "A host name that requests may be sent to, in addition to --host and localhost; may be "
        "repeated.", SERVER, "NAME")] = ()  # fmt: skip
    allow_origin: Annotated[tuple[str, ...], Option(
        "An origin whose pages may use the server, such as https://chat.example.org, or *; may be "
        "repeated.", SERVER, "ORIGIN")] = ()  # fmt: skip
    strict: Annotated[bool, Option(
        "Refuse parameters of unknown names instead of ignoring them with a warning.",
        SERVER)] = False  # fmt: skip
    prompt_share: Annotated[float, Option(
        "Share of the time for prompts while answers are generated.", ENGINE,
        "S")] = 0.45  # fmt: skip
    no_reuse: Annotated[bool, Option(
        "Run every prompt whole, without the prefix cache.", ENGINE)] = False  # fmt: skip
    share_prefixes: Annotated[bool, Option(
        "Reuse cached prompts of requests with other API keys, which usage then reveals.",
        ENGINE)] = False  # fmt: skip
    replicas: Annotated[int | None, Option(
        "Engines, each with a GPU of its own where there are any; runs on Ray.", ENGINE, "N",
        least=1)] = None  # fmt: skip
    no_warm_up: Annotated[bool, Option(
        "Record each round when it is first needed.", ENGINE)] = False  # fmt: skip

    @property
    def model_names(self) -> tuple[str, ...]:
        """The model's names in requests; responses have the first."""
        return self.served_model_name or (self.name,)

    @property
    def load_options(self) -> dict[str, Any]:
        """The options of `load_artifact`."""
        return {
            "executor": self.executor,
            "drafter": self.drafter,
            "prompt_share": self.prompt_share,
            "reuse": not self.no_reuse,
        }

    def read_keys(self) -> tuple[str, ...]:
        """Return the API keys, nothing without a file. Raises SettingError for a file without
        keys."""
        if (path := self.api_key_file) is None:
            return ()
        try:
            content = read_small(path, MAX_KEY_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            line = f"--api-key-file {path}: cannot be read ({reason(error)})"
            raise SettingError(line) from error
        keys = tuple(line.strip() for line in content.splitlines() if line.strip())
        if not keys:
            raise SettingError(f"--api-key-file {path}: has no keys")
        return keys
