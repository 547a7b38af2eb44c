"""The bench of a prompt's parts: everything but the GPU."""

from collections.abc import Callable, Sequence

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from bench.int4.shapes import Shape
from bench.prompt import attention, layers, products
from bench.sdpa.layers import Layer
from bench_prompt import main
from eagle_aot.export import Source, load_pair
from eagle_aot.export.prepare.pack import pack_int4
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.tap_decoder import TapDecoder
from eagle_aot.targets.int4 import Int4Weight
from eagle_aot.triton_kernels.int4_gemm.op import int4_large_m
from eagle_aot.triton_kernels.sdpa_prompt import sdpa_prompt

SMALL = Shape("small", 256, 128, 60)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators in place of kernels, and a clock that calls once and says 2 us."""

    def call_once(calls: Sequence[Callable[[], object]]) -> float:
        for call in calls:
            call()
        return 2.0

    for module in (attention, layers, products):
        monkeypatch.setattr(module, "median_us", call_once)
    monkeypatch.setattr(products, "launch", lambda *given: int4_large_m(*given[:-1]))
    monkeypatch.setattr(attention, "launch", lambda *given: sdpa_prompt(*given[:-1]))


def random_weight(shape: Shape, group: int) -> Int4Weight:
    groups = shape.k // group
    return Int4Weight(
        qdata=torch.randint(0, 256, (shape.n, shape.k // 2), dtype=torch.uint8),
        scale=torch.rand(groups, shape.n).bfloat16(),
        zero_point=torch.full((groups, shape.n), 8.0, dtype=torch.bfloat16),
    )


@pytest.mark.parametrize("group", [32, 128])
def test_products_are_timed_by_rows_and_summed(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "random_weight", random_weight)
    monkeypatch.setattr(products, "copies_past_l2", lambda nbytes: 2)
    monkeypatch.setattr(products, "PROMPT_SHAPES", (SMALL,))
    notes = set[str]()
    makers = products.tiles(group) | {"dense": products.dense}
    found = products.measure(SMALL, group, makers, [4, 8], notes)
    assert [p.name for p in found] == list(makers) and not notes
    assert all(p.error < 0.01 and p.us == {4: 2.0, 8: 2.0} for p in found)
    assert products.forward_ms(found, group, "dense", 8) == 60 * 2.0 / 1e3
    assert products.forward_ms(found, group, "another", 8) is None


def test_a_product_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "random_weight", random_weight)
    monkeypatch.setattr(products, "copies_past_l2", lambda nbytes: 1)

    def fails(weight: Int4Weight) -> Callable[[Tensor], Tensor]:
        raise RuntimeError("no kernel")

    notes = set[str]()
    assert products.measure(SMALL, 32, {"it": fails}, [4], notes) == []
    assert notes == {"it, small, group 32: RuntimeError: no kernel"}


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("behind", [0, 50])
def test_peers_compute_the_same_attention(window: int, behind: int) -> None:
    chunk = attention.random_chunk(Layer("small", 4, 2, 64, window), behind, 80, "cpu")
    notes = set[str]()
    found = attention.measure(chunk, True, False, notes)
    found += attention.timed(chunk, "SDPA", attention.stock, attention.expected(chunk), notes)
    assert not notes and {one.name for one in found} > {"SDPA"}
    assert all(one.error < 0.05 for one in found), found


def test_flops_are_those_of_what_is_seen() -> None:
    chunk = attention.random_chunk(Layer("small", 4, 2, 64, 40), 30, 20, "cpu")
    seen = sum(min(40, position + 1) for position in range(30, 50))
    assert chunk.flop == 2 * 2 * seen * 4 * 64


@torch.no_grad()
def test_layers_are_those_of_the_target() -> None:
    source = Source.find("gemma4-tiny", None, None, "dummy", drafter="ngram")
    pair = load_pair(source, torch.bfloat16, CacheSpec(256, torch.bfloat16, chunk=128)).pair
    target = pack_int4(pair, 132).target
    assert isinstance(target, TapDecoder)
    model = layers.Layers(target)
    assert model.uncut(20, 128, (0, 65, 128))
    contexts, stream = model.chunk(20, 70)
    logits = target.logits(target.norm(model.run(contexts, stream)))
    target.embed = lambda tokens: stream  # type: ignore[method-assign]
    rows = contexts["full_attention"].view.chunk  # type: ignore[union-attr]
    expected, _ = target.run(torch.zeros(1, 70, dtype=torch.int64), rows)
    assert torch.equal(logits, expected)
    assert layers.Chunked(0, 2048, 20_000).tokens_per_second == pytest.approx(10_240)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    run = CliRunner().invoke(main, [])
    assert run.exit_code == 1 and "needs an NVIDIA GPU" in run.stderr
