"""Safetensors with flattened torchao tensors, as ExecuTorch's quantiser writes them.

A tensor `a.weight` is stored as `a._weight_qdata`, `a._weight_scale` and `a._weight_zero_point`,
by torchao before 0.15 as `a.weight:qdata` and the like, and plain tensors as `a.weight:_data`; the
file's metadata names the whole tensors (`tensor_names`) and has, for each, its class and
attributes as JSON. `Int4Tensor` of ExecuTorch: qdata uint8 [N, K / 2], scale and zero point
[K / g, N], `(code - zero) * scale`: the canonical layout. `IntxUnpackedToInt8Tensor`: qdata int8
[N, K], scale and zero point [N, K / g].
Source: torchao 0.14 and 0.18 `prototype/safetensors/safetensors_support.py`, ExecuTorch 1.5
`extension/llm/export/quant`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.int4.weight import Int4Weight, bytes_of_codes
from eagle_aot.targets.weight_files.dense_files import SafetensorsFile
from eagle_aot.targets.weight_files.protocol import TensorStorage
from eagle_aot.triton_kernels.int4_gemm import dequantise_int4

PLAIN, PACKED, UNPACKED = "Tensor", "Int4Tensor", "IntxUnpackedToInt8Tensor"
PARTS = ("qdata", "scale", "zero_point")
INT4_DTYPE = {"_type": "torch.dtype", "_data": "int4"}
SIGNED_OFFSET = 8  # of a signed code in -8..7 to an unsigned one


class TorchaoFile:
    """The torchao tensors of a safetensors file, under their own names, and its plain tensors."""

    @staticmethod
    def recognises(file: SafetensorsFile) -> bool:
        """Whether torchao flattened tensors into `file`."""
        return "tensor_names" in file.metadata

    def __init__(self, file: SafetensorsFile) -> None:
        self._file, self._stored = file, frozenset(file.names())
        self.path: Path = file.path
        self._kinds = {name: self._describe(name) for name in self._parse("tensor_names", list)}
        parts = [part for name in self._kinds for part in self._parts(name)]
        self._plain = sorted(self._stored - set(parts))
        if missing := sorted(set(parts) - self._stored):
            raise CheckpointError(f"{self.path}: tensor {missing[0]!r} is missing")

    def names(self) -> list[str]:
        return [*self._kinds, *self._plain]

    def shape(self, name: str) -> torch.Size:
        if self._kind(name) == PLAIN:
            return self._file.shape(self._parts(name)[0])
        *rows, columns = self._file.shape(self._part(name, "qdata"))
        return torch.Size((*rows, columns * 2 if self._kind(name) == PACKED else columns))

    def storage(self, name: str) -> TensorStorage:
        kind = self._kind(name)
        parts = [self._file.storage(part) for part in self._parts(name)]
        if kind == PLAIN:
            return parts[0]
        is_int4 = kind == PACKED or self._is_four_bit(name)
        return TensorStorage(kind, sum(part.bytes for part in parts), is_int4)

    def tensor(self, name: str) -> Tensor:
        if self._kind(name) == PLAIN:
            return self._file.tensor(self._parts(name)[0])
        if self._kind(name) == UNPACKED:
            return self._dense(name)
        weight = self._packed(name)
        return dequantise_int4(weight.qdata, weight.scale, weight.zero_point)

    def int4(self, name: str) -> Int4Weight | None:
        if self._kind(name) == PACKED:
            return self._packed(name)
        if self._kind(name) == UNPACKED and self._is_four_bit(name):
            return self._repacked(name)
        return None

    def _packed(self, name: str) -> Int4Weight:
        qdata, scale, zero_point = (self._read(name, part) for part in PARTS)
        if qdata.dtype == torch.int8:
            raise UnsupportedError(
                f"{self.path}: {name} has signed codes, as torchao's own Int4WeightOnlyConfig "
                "writes them; only ExecuTorch's quantizer is read"
            )
        if qdata.dtype != torch.uint8 or qdata.ndim != 2:
            raise CheckpointError(f"{self.path}: {name} has {qdata.dtype} codes")
        return Int4Weight(qdata, scale.float(), zero_point.float())

    def _repacked(self, name: str) -> Int4Weight:
        qdata, scale, zero_point = self._unpacked(name)
        return Int4Weight(
            qdata=bytes_of_codes((qdata + SIGNED_OFFSET).to(torch.uint8)),
            scale=scale.t().contiguous(),
            zero_point=(zero_point + SIGNED_OFFSET).t().contiguous(),
        )

    def _dense(self, name: str) -> Tensor:
        qdata, scale, zero_point = self._unpacked(name)
        groups = qdata.unflatten(1, (scale.shape[1], -1)).float()
        return ((groups - zero_point.unsqueeze(-1)) * scale.unsqueeze(-1)).flatten(1)

    def _unpacked(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Read qdata int8 [N, K], scale and zero point float32 [N, K / g]."""
        qdata, scale, zero_point = (self._read(name, part) for part in PARTS)
        groups = scale.shape[-1] if scale.ndim else 0
        fits = scale.shape == zero_point.shape == (*qdata.shape[:1], groups) and groups > 0
        if qdata.dtype != torch.int8 or qdata.ndim != 2 or not fits or qdata.shape[1] % groups:
            raise CheckpointError(
                f"{self.path}: {name}: {qdata.dtype} {list(qdata.shape)} with scales "
                f"{list(scale.shape)} and zero points {list(zero_point.shape)}"
            )
        return qdata, scale.float(), zero_point.float()

    def _read(self, name: str, part: str) -> Tensor:
        tensor = self._file.tensor(self._part(name, part))
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise CheckpointError(f"{self.path}: {name} has NaN or infinite values")
        return tensor

    def _kind(self, name: str) -> str:
        return self._kinds[name]["_type"] if name in self._kinds else PLAIN

    def _parts(self, name: str) -> list[str]:
        """Return the names of the stored tensors that make up one tensor."""
        if self._kind(name) == PLAIN:
            older = f"{name}:_data"
            return [older if older in self._stored else name]
        return [self._part(name, part) for part in PARTS]

    def _part(self, name: str, part: str) -> str:
        owner, _, leaf = name.rpartition(".")
        older = f"{name}:{part}"
        return older if older in self._stored else f"{owner}._{leaf}_{part}"

    def _is_four_bit(self, name: str) -> bool:
        return self._kinds[name]["_data"].get("target_dtype") == INT4_DTYPE

    def _describe(self, name: str) -> dict[str, Any]:
        kind: dict[str, Any] = self._parse(name, dict)
        if kind.get("_type") not in (PLAIN, PACKED, UNPACKED):
            raise UnsupportedError(f"{self.path}: {name} is a torchao {kind.get('_type')}")
        attributes = kind.setdefault("_data", {})
        extra = set(kind.get("_tensor_data_names", PARTS)) - set(PARTS)
        if not isinstance(attributes, dict):
            raise CheckpointError(f"{self.path}: torchao metadata of {name!r} is {kind!r}")
        if extra or attributes.get("activation_quantization") is not None:
            raise UnsupportedError(f"{self.path}: {name} quantizes activations or scales them")
        return kind

    def _parse(self, key: str, kind: type) -> Any:
        try:
            value = json.loads(self._file.metadata[key])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.path}: torchao metadata of {key!r}: {error}") from error
        if not isinstance(value, kind):
            raise CheckpointError(f"{self.path}: torchao metadata of {key!r} is {value!r}")
        return value
