"""A pair on its way into the pipeline."""

import pytest
import torch

from eagle_aot.common.errors import ExportError
from eagle_aot.export import ExportOptions, Source, pipeline, run_check
from eagle_aot.export import load as source_module
from eagle_aot.export.lowering.backend import DTYPES
from eagle_aot.targets.decoder.kv_cache import CacheSizes


def test_a_dummy_that_a_device_drew_lies_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the device is the host itself, so that the numbers must be the host's, too."""
    monkeypatch.setattr(pipeline, "CUDA", "cpu")
    monkeypatch.setitem(DTYPES, "cpu", torch.bfloat16)
    source = Source.find("gemma4-tiny", None, None, "dummy")
    pair = pipeline.load_pair(source, CacheSizes(64, torch.bfloat16))
    found, expected = pair.state_dict(), source.load(CacheSizes(64, torch.bfloat16)).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert pair.draft.embed_tokens.weight is pair.target.embed_weight


def out_of_memory(*arguments: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.62 GiB.\nand more")


def test_a_gpu_too_small_to_draw_a_dummy_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "dummy_draft", out_of_memory)
    source = Source.find("gemma4-tiny", None, None, "dummy")
    with pytest.raises(ExportError, match=r"^loading failed: out of memory on the GPU, 2\.62 G"):
        source.load(CacheSizes(64, torch.bfloat16))


def test_a_gpu_too_small_to_pack_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "pack_int4", out_of_memory)
    source = Source.find("gemma4-tiny", None, None, "dummy")
    with pytest.raises(ExportError, match=r"^packing failed: out of memory on the GPU, 2\.62 G"):
        run_check(source, ExportOptions(backend="cuda", max_seq_len=128))
