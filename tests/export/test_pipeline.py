"""A pair on its way into the pipeline."""

import pytest
import torch

from eagle_aot.export import Source, pipeline
from eagle_aot.export.lowering.backend import DTYPES


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
