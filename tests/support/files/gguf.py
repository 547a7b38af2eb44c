"""GGUF files, written by the `gguf` package; Q4_K, which it does not write, block by block."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, get_tensor_name_map, quantize
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from torch import Tensor

Bytes = npt.NDArray[np.uint8]


class GgufModel:
    """A file under construction, of one architecture."""

    def __init__(self, path: Path, architecture: str = "gemma4", layers: int = 1) -> None:
        self.writer = GGUFWriter(path, architecture)
        self.writer.add_block_count(layers)
        arch: MODEL_ARCH = next(a for a, n in MODEL_ARCH_NAMES.items() if n == architecture)
        self._names = get_tensor_name_map(arch, layers)

    def add(self, name: str, tensor: Tensor, kind: Type = Type.F32) -> None:
        """A tensor under a Hugging Face name, in a type that the package can write."""
        stored = self._names.get_name(name, try_suffixes=(".weight",))
        if name.endswith("layer_scalar"):
            stored = f"{stored}.weight"
        assert stored is not None, name
        self.add_bytes(stored, quantize(tensor.float().numpy(), kind), kind)

    def add_bytes(self, stored: str, data: npt.NDArray[np.generic], kind: Type) -> None:
        self.writer.add_tensor(stored, data, raw_dtype=kind)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def random_q4_k(rows: int, columns: int, seed: int = 0) -> Bytes:
    """Blocks with random bytes in them, but finite scales: every bit has a meaning."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows, columns // 256, 144), dtype=np.uint8)
    scales = generator.uniform(0.001, 0.02, (rows, columns // 256, 2)).astype(np.float16)
    blocks[..., :4] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)
