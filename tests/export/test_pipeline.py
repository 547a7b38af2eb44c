"""A pair on its way into the pipeline."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from eagle_aot.errors import ExportError
from eagle_aot.export import ExportOptions, Source, pipeline, run_check
from eagle_aot.export import source as source_module
from eagle_aot.export.draft_config import DraftConfig
from eagle_aot.export.draft_head import Eagle3Draft
from eagle_aot.export.lowering.backend import DTYPES, Lowering


def test_a_dummy_that_a_device_drew_lies_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the device is the host itself, so that the numbers must be the host's, too."""
    monkeypatch.setattr(pipeline, "CUDA", "cpu")
    monkeypatch.setitem(DTYPES, "cpu", torch.bfloat16)
    source = Source.find("gemma4-tiny", None, None, "dummy")
    pair = pipeline.load_pair(source, 64, "cpu")
    found, expected = pair.state_dict(), source.load(64, torch.bfloat16).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert pair.draft.embed_tokens.weight is pair.target.embed_weight


def out_of_memory(*arguments: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.62 GiB.\nand more")


def test_a_gpu_too_small_to_draw_a_dummy_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "dummy_draft", out_of_memory)
    source = Source.find("gemma4-tiny", None, None, "dummy")
    with pytest.raises(ExportError, match=r"^loading failed: CUDA out of memory\. Tried .* GiB\.$"):
        source.load(64, torch.bfloat16)


def test_a_gpu_too_small_to_pack_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "pack_int4", out_of_memory)
    source = Source.find("gemma4-tiny", None, None, "dummy")
    with pytest.raises(ExportError, match=r"^packing failed: CUDA out of memory\. Tried .* GiB\.$"):
        run_check(source, ExportOptions(backend="cuda", max_seq_len=64))


@pytest.mark.parametrize(
    ("attention", "head_dim", "recorded"),
    [("splitk", 32, "splitk"), ("splitk", 24, "stock"), ("stock", 32, "stock")],
)
def test_the_heads_attention_is_recorded(attention: str, head_dim: int, recorded: str) -> None:
    config = DraftConfig(
        hidden_size=32, target_hidden_size=32, num_taps=3, vocab_size=50, draft_vocab_size=50,
        intermediate_size=64, num_heads=2, num_kv_heads=1, head_dim=head_dim,
        norm_before_residual=True,
    )  # fmt: skip
    compiler = SimpleNamespace(device_record=lambda: {"name": "a GPU"})
    draft = Eagle3Draft(config, 16, torch.bfloat16)
    record = pipeline.device_record(cast(Lowering, compiler), attention, draft)
    assert record == {"name": "a GPU", "attention": attention, "draft_attention": recorded}
