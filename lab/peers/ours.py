"""An artifact behind `serve`: python -m peers.ours ARTIFACT THREADS"""

import sys
from importlib.metadata import version
from typing import Any

from executorch.extension.pybindings import portable_lib

from eagle_aot.lab.peers.serving import Told, serve
from eagle_aot.runtime_runner import load_artifact


def main(artifact: str, threads: str) -> None:
    """A request's `chain_len` is 0 for plain decoding."""
    portable_lib._unsafe_reset_threadpool(int(threads))
    runner = load_artifact(artifact)

    def decode(request: dict[str, Any], tell: Told) -> None:
        length = request["chain_len"]
        how = {"chain_len": length} if length else {"speculate": False}
        runner.generate(request["tokens"], request["max_new_tokens"], **how, on_tokens=tell)

    serve(f"executorch {version('executorch')}", decode)


if __name__ == "__main__":
    main(*sys.argv[1:])
