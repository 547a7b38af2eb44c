"""One place for a table that is read row by row and multiplied as well.

ExecuTorch keeps what its own operators read among a program's constants and what XNNPACK multiplies
among the program's named data. Neither can point at the other, so a tied table would lie in
`model.pte` twice: 113 of 652 MB of SmolLM2-135M. In a file of named data beside it, equal contents
are stored once.
"""

import hashlib
from collections.abc import Iterator

from executorch.exir import EdgeProgramManager
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

TAG = "model"
"""What the file is called by ExecuTorch."""


class SharedTables:
    """Those of a lowered program: what `ExecutorchBackendConfig` takes as `external_constants`."""

    def __init__(self, edge: EdgeProgramManager) -> None:
        """Moves what XNNPACK multiplies of them out of the program, too."""
        store = edge._named_data_store
        self._names = set[str]()
        for method in edge.methods:
            for name, key in _constants(edge.exported_program(method)):
                if key in store.pte_data:
                    store.external_data.setdefault(TAG, {})[key] = store.pte_data.pop(key)
                if key in store.external_data.get(TAG, {}):
                    self._names.add(name)

    def __call__(self, placeholder: Node) -> str | None:
        return TAG if placeholder.name in self._names else None


def _constants(program: ExportedProgram) -> Iterator[tuple[str, str]]:
    """Weights that ExecuTorch's own operators read: their names in the graph, and the keys that
    XNNPACK would give them."""
    for name, weight in program.graph_signature.inputs_to_parameters.items():
        tensor = program.state_dict[weight]
        yield name, _key(tensor)


def _key(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().view(-1).numpy().tobytes()).hexdigest()
