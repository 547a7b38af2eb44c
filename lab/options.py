"""Options that all commands of the lab share."""

from typing import TYPE_CHECKING, Annotated, Any

from eagle_aot.common.spec import Option
from eagle_aot.runtime_runner.decode.shape import AUTO, ChainLen
from eagle_aot.runtime_runner.spec import ManyTextsSpec

if TYPE_CHECKING:
    from eagle_aot.runtime_runner import Runner


class LabSpec(ManyTextsSpec, kw_only=True, frozen=True):
    """An artifact, how to open it, and how to print results."""

    no_cuda_graph: Annotated[bool, Option("Launch the kernels of a round one by one.")] = False
    as_json: Annotated[bool, Option("Print JSON.", flag="--json")] = False

    def load(self, **options: Any) -> "Runner":
        """Open the artifact. Raises EagleError."""
        return ManyTextsSpec.load(self, cuda_graphs=not self.no_cuda_graph, **options)


def parse_chain_lens(text: str) -> tuple[ChainLen, ...]:
    """Read `1,4,auto` as chain lengths. Raises ValueError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word == AUTO or (word.isdecimal() and int(word)) for word in words):
        raise ValueError(f"expected a list like 1,2,3 or 4,{AUTO}")
    return tuple(AUTO if word == AUTO else int(word) for word in words)
