"""Options that all commands of the lab share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from eagle_aot.common.spec import Option, check_fields
from eagle_aot.runtime_runner.decode.shape import AUTO_LENGTH, ChainLen

if TYPE_CHECKING:
    from eagle_aot.runtime_runner import Runner


class ArtifactSpec(msgspec.Struct, kw_only=True, frozen=True):
    """An artifact, how to open it, and how to print results."""

    artifact: Path
    drafter: Annotated[
        str | None,
        Option("What drafts: the artifact's own drafter, or ngram.", metavar="KIND"),
    ] = None
    executor: Annotated[Literal["auto", "aoti", "executorch"], Option("What runs the program.")] = (
        "auto"
    )
    no_cuda_graph: Annotated[bool, Option("Launch every kernel of a round by itself.")] = False
    as_json: Annotated[bool, Option("Print JSON.", flag="--json")] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def load(self) -> "Runner":
        """Open the artifact. Raises EagleError."""
        from eagle_aot.runtime_runner.load import load_artifact  # imports torch

        return load_artifact(
            self.artifact,
            self.executor,
            cuda_graphs=not self.no_cuda_graph,
            drafter=self.drafter,
        )


def parse_chain_lens(text: str) -> tuple[ChainLen, ...]:
    """Read `1,4,auto` as chain lengths. Raises ValueError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word == AUTO_LENGTH or (word.isdecimal() and int(word)) for word in words):
        raise ValueError(f"expected a list like 1,2,3 or 4,{AUTO_LENGTH}")
    return tuple(AUTO_LENGTH if word == AUTO_LENGTH else int(word) for word in words)
