"""A compiled method on its way from one process to another."""

import gc
import hashlib
import pickle
from importlib.util import find_spec
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
from torch import nn

if not find_spec("triton"):
    pytest.skip("the CUDA backend needs triton to import", allow_module_level=True)

from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_weight_collector import CudaWeightArtifact
from executorch.exir._serialize._cord import FileBackedData
from executorch.exir.backend.backend_details import PreprocessResult

from eagle_aot.common.errors import ExportError
from eagle_aot.export.lowering.cuda import compile_specs
from eagle_aot.export.lowering.side_by_side.compiled import Compiled, taken_over


def test_a_file_of_weights_is_its_receivers(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"weights")
    given = FileBackedData(str(path), cleanup=True)
    sent = ForkingPickler.dumps(given)
    del given
    gc.collect()
    assert path.exists(), "the giver removes it no more"
    received = pickle.loads(sent)
    assert received.to_bytes() == b"weights"
    assert received.sha256() == hashlib.sha256(b"weights").digest()
    del received
    gc.collect()
    assert not path.exists()


def test_a_method_that_was_traced_otherwise_is_refused() -> None:
    program = torch.export.export(nn.Identity(), (torch.zeros(1),))
    result = PreprocessResult(processed_bytes=b"", debug_handle_map={})
    other = Compiled("another graph", result, CudaWeightArtifact([], {}), 1.0, 2.0)
    specs = {"prefill": [compile_specs("prefill")]}
    with (
        taken_over({"prefill": other}.__getitem__),
        pytest.raises(ExportError, match=r"prefill came out differently .*: use --jobs 1$"),
    ):
        CudaBackend.preprocess_multimethod({"prefill": [program]}, specs)
