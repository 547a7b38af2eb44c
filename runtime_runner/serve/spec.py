"""The options of `eagle-serve`. Imports no torch."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from eagle_aot.common.errors import ArtifactError, SettingError, reason
from eagle_aot.common.files import read_small
from eagle_aot.common.spec import Option
from eagle_aot.common.text import nearest
from eagle_aot.runtime_runner.sampling.parameters import (
    GENERATION_CONFIG,
    RECOMMENDED,
    SamplingParams,
    recommended,
)
from eagle_aot.runtime_runner.spec import ENGINE, ManyTextsSpec

MAX_KEY_BYTES = 1 << 20
DEFAULTED = (*RECOMMENDED, "presence_penalty", "frequency_penalty")
"""Sampling parameters that `--sampling-defaults` may set."""
API_DEFAULTS: dict[str, Any] = {"temperature": 1.0}
"""The defaults of OpenAI's API."""
SERVER = "Server"
ToolCallParser = Literal["gemma4", "hermes", "llama3_json", "qwen3_xml"]


def parse_sampling_defaults(text: str) -> str | dict[str, Any]:
    """Read `--sampling-defaults`. Raises ValueError."""
    if text in ("model", "openai"):
        return text
    try:
        values: dict[str, Any] = msgspec.json.decode(text, type=dict[str, float])
    except msgspec.MsgspecError as error:
        raise ValueError("must be model, openai or a JSON object of numbers") from error
    for name, value in values.items():
        if name not in DEFAULTED:
            raise ValueError(f"has {name}{nearest(name, DEFAULTED)}")
        if name == "top_k" and value == int(value):
            values[name] = int(value)
    try:
        SamplingParams(**values)
    except SettingError as error:
        raise ValueError(str(error)) from error
    return values


class ServeSpec(ManyTextsSpec, kw_only=True, frozen=True):
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
    sampling_defaults: Annotated[str | dict[str, Any], Option(
        "What requests sample with unless they say otherwise: model, as the model's makers "
        "recommend; openai, a temperature of 1; or a JSON object such as "
        '{"temperature": 0.7, "top_p": 0.9}.', SERVER, "DEFAULTS",
        parse=parse_sampling_defaults)] = "model"  # fmt: skip
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

    def sampling_defaults_of(self, directory: Path) -> dict[str, Any]:
        """Return the values of requests that do not give them, by the names of `SamplingParams`.
        Raises ArtifactError for recommendations that cannot be read or used."""
        if isinstance(self.sampling_defaults, dict):
            return API_DEFAULTS | self.sampling_defaults
        if self.sampling_defaults == "openai":
            return API_DEFAULTS
        values = API_DEFAULTS | recommended(directory)
        try:
            SamplingParams(**values)
        except SettingError as error:
            line = (
                f"{directory / GENERATION_CONFIG}: {error}: start with --sampling-defaults openai"
            )
            raise ArtifactError(line) from error
        return values

    @property
    def load_options(self) -> dict[str, Any]:
        """The options of `load_artifact`."""
        return {
            "executor": self.executor,
            "drafter": self.drafter,
            "prompt_share": self.prompt_share,
            "reuse": not self.no_reuse,
            "cache_memory": self.cache_memory,
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
