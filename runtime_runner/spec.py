"""Options that commands which open an artifact share. Imports no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from eagle_aot.artifact.locate import artifact_name, local_artifact
from eagle_aot.common.spec import Option, OptionsOf, check_fields
from eagle_aot.runtime_runner.frontend.parameters import SPECULATION, GenerationParams, parse_params
from eagle_aot.runtime_runner.sampling.parameters import GENERATION

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.runner import Runner

ENGINE, OUTPUT = "Engine", "Output"


class ArtifactSpec(msgspec.Struct, kw_only=True, frozen=True):
    """An artifact, and how to open it. A published one, ORG/NAME, is downloaded and replaced by its
    directory when a spec is made, which raises HubError."""

    artifact: Path
    drafter: Annotated[str | None, Option(
        "The artifact's drafter, by its kind, or ngram. Default: the artifact's.", SPECULATION,
        "KIND")] = None  # fmt: skip
    executor: Annotated[Literal["auto", "aoti", "executorch"], Option(
        "What runs the program.", ENGINE)] = "auto"  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        msgspec.structs.force_setattr(self, "artifact", local_artifact(self.artifact))

    @property
    def name(self) -> str:
        """The name of the artifact's repository or directory."""
        return artifact_name(self.artifact)

    def load(self, **options: Any) -> "Runner":
        """Open the artifact; `options` are other arguments of `load_artifact`. Raises as it
        does."""
        from eagle_aot.runtime_runner.load import load_artifact  # imports torch

        return load_artifact(self.artifact, self.executor, drafter=self.drafter, **options)


class ManyTextsSpec(ArtifactSpec, kw_only=True, frozen=True):
    """An artifact for many texts at the same time, and what they share."""

    kv_cache_memory: Annotated[float | None, Option(
        "GiB of a GPU's memory for caches, which texts share. Default: what is free.", ENGINE,
        "GIB", least=0)] = None  # fmt: skip

    @property
    def cache_memory(self) -> int | None:
        """`kv_cache_memory` in bytes."""
        return None if self.kv_cache_memory is None else int(self.kv_cache_memory * 2**30)

    def load(self, **options: Any) -> "Runner":
        return ArtifactSpec.load(self, cache_memory=self.cache_memory, **options)


class GenerationSpec(ArtifactSpec, kw_only=True, frozen=True):
    """An artifact, and the parameters of requests: those in `params`, replaced by `flags`."""

    flags: Annotated[dict[str, Any], OptionsOf(GenerationParams)] = msgspec.field(
        default_factory=dict
    )
    params: Annotated[dict[str, Any], Option(
        'Fields of GenerationParams, {"logit_bias": {"42": -1.5}, "min_tokens": 8}; other options '
        "replace them.", GENERATION, "JSON", parse=parse_params)] = {}  # fmt: skip

    @property
    def generation(self) -> dict[str, Any]:
        """The fields of `GenerationParams` that were given."""
        return self.params | self.flags
