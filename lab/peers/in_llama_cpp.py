"""llama.cpp behind `serve`: python -m peers.in_llama_cpp FILE.gguf THREADS

By xllamacpp, which is llama.cpp's server as a library, prebuilt for CPUs.
"""

import sys
from importlib.metadata import version
from typing import Any

import xllamacpp

from eagle_aot.lab.peers.serving import Told, serve

CONTEXT = 1024


def main(model: str, threads: str) -> None:
    """Greedy decoding of one text at a time, nothing of which is kept for the next."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel = CONTEXT, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    server = xllamacpp.Server(params)

    def decode(request: dict[str, Any], tell: Told) -> None:
        how = {"temperature": 0, "cache_prompt": False, "stream": True, "verbose": True}
        asked = {"prompt": request["tokens"], "n_predict": request["max_new_tokens"], **how}
        server.handle_completions(asked, lambda part: heard(part, tell))

    serve(f"llama.cpp of xllamacpp {version('xllamacpp')}", decode)


def heard(part: dict[str, Any], tell: Told) -> bool:
    """Tell of a part's tokens; the last part has all of them once more. True would end the text."""
    if not part["__verbose"]["stop"]:
        tell(part["__verbose"]["tokens"])
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
