"""transformers in float32 behind `serve`: python -m peers.in_transformers FILE.gguf THREADS"""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from eagle_aot.lab.peers.serving import Told, serve


def load_reference(checkpoint: Path) -> Any:
    """Return the model of a directory or GGUF file in float32, as transformers reads it."""
    files = list(checkpoint.glob("*.gguf")) if checkpoint.is_dir() else []
    checkpoint = files[0] if len(files) == 1 else checkpoint
    folder, name = (
        (checkpoint.parent, checkpoint.name) if checkpoint.is_file() else (checkpoint, None)
    )
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()


class Teller(BaseStreamer):
    """Tells of every token, the prompt's excepted, which come first."""

    def __init__(self, tell: Told) -> None:
        self._tell, self._prompt = tell, True

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            self._tell(value.tolist())
        self._prompt = False

    def end(self) -> None:
        """Nothing is left to be told."""


def main(checkpoint: str, threads: str) -> None:
    """Greedy decoding by `generate`, with its key/value cache."""
    torch.set_num_threads(int(threads))
    model = load_reference(Path(checkpoint))

    def decode(request: dict[str, Any], tell: Told) -> None:
        tokens = torch.tensor([request["tokens"]])
        most = request["max_new_tokens"]
        mask = torch.ones_like(tokens)
        model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=most,
            do_sample=False,
            streamer=Teller(tell),
        )

    serve(f"transformers {version('transformers')}", decode)


if __name__ == "__main__":
    main(*sys.argv[1:])
