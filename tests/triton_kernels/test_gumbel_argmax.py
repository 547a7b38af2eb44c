"""Argmax under Gumbel noise without a GPU: the noise, the reference and the compiled kernel."""

import hashlib
import math
import statistics

import pytest
import torch

from eagle_aot.triton_kernels.gumbel_argmax import gumbel_argmax, gumbel_reference, perturbed
from eagle_aot.triton_kernels.gumbel_argmax.reference import _noise
from eagle_aot.triton_kernels.gumbel_argmax.table import gumbel_table
from support.kernels.compiled import ptx_for_h100
from support.kernels.gumbel_cases import CASES, Case

EDGES = [0, 1, 2, 3, 2**31 - 1, 2**31 - 2, -1, -2, -3, -(2**31), 1 - 2**31]


def test_noise_matches_the_gumbel_quantile_function() -> None:
    drawn = torch.randint(-(2**31), 2**31, (20_000,), generator=torch.manual_seed(3)).tolist()
    small = [sign * 2**power - (sign < 0) for power in range(31) for sign in (1, -1)]
    bits = [*EDGES, *small, *drawn]
    values = _noise(torch.tensor(bits, dtype=torch.int32)).tolist()
    for h, noise in zip(bits, values, strict=True):
        if h >= 0:
            exact = -math.log(-math.log1p(-(h + 0.5) / 2**32))
        else:
            exact = -math.log(-math.log((~h + 0.5) / 2**32))
        assert noise == pytest.approx(exact, abs=1e-5)


def test_noise_rises_with_the_uniform_number() -> None:
    upper = torch.arange(2**31 - 1, -1, -9973).int()
    lower = ~torch.arange(0, 2**31, 9973).int()
    for bits in (upper, lower):
        assert (_noise(bits).double().diff() >= -3e-6).all()


def test_the_noise_table_has_its_recorded_digest() -> None:
    """Sampled texts depend on the table."""
    table = gumbel_table(torch.device("cpu"))
    digest = hashlib.sha256(table.numpy().tobytes()).hexdigest()
    assert digest[:16] == "98a23ab87bf46f1b"


def test_the_products_of_slope_and_rest_are_exact() -> None:
    """Fused and separate additions then round alike."""
    slope = gumbel_table(torch.device("cpu"))[1]
    rest = torch.tensor([1.0, 3.0, 32767.0, 32765.0])
    product = slope.unsqueeze(1) * rest
    assert torch.equal(product.double(), slope.double().unsqueeze(1) * rest.double())


def test_noise_of_some_tokens_has_recorded_values() -> None:
    ids = torch.tensor([0, 1, 2, 262143], dtype=torch.int32)
    assert gumbel_reference(ids, (1, -2)).tolist() == [
        -0.5995486974716187,
        1.7780883312225342,
        3.5352835655212402,
        1.0170574188232422,
    ]


def test_noise_has_the_moments_of_the_gumbel_distribution() -> None:
    noise = gumbel_reference(torch.arange(1 << 20, dtype=torch.int32), (11, 22)).double()
    mean, deviation = 0.57721566, math.pi / math.sqrt(6)
    assert noise.mean().item() == pytest.approx(mean, abs=4 * deviation / 1024)
    assert noise.std().item() == pytest.approx(deviation, rel=0.01)


def test_keys_that_differ_in_one_bit_give_uncorrelated_noise() -> None:
    ids = torch.arange(1 << 16, dtype=torch.int32)
    key = (5, 6)
    base = gumbel_reference(ids, key)
    for word in range(2):
        for bit in (0, 7, 16, 30):
            other = key[0] ^ (1 - word) << bit, key[1] ^ word << bit
            noise = gumbel_reference(ids, other).tolist()
            assert abs(statistics.correlation(base.tolist(), noise)) < 6 / 256


@pytest.mark.parametrize("case", CASES, ids=str)
def test_argmax_chooses_the_first_maximum(case: Case) -> None:
    arguments = case.arguments()
    rows = perturbed(*arguments).tolist()
    assert gumbel_argmax(*arguments).tolist() == [row.index(max(row)) for row in rows]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_noise_follows_token_ids_and_scale_0_adds_none(case: Case) -> None:
    logits, scale, keys, ids = case.arguments()
    noisy = perturbed(logits, scale, keys, ids)
    numbers = torch.arange(case.vocab, dtype=torch.int32) if ids is None else ids
    for row in range(case.rows):
        if not scale[row]:
            assert torch.equal(noisy[row], logits[row])
            continue
        noise = gumbel_reference(numbers, tuple(keys[row].tolist()))
        assert torch.equal(noisy[row], logits[row] * scale[row] + noise)


def test_the_h100_kernel_fuses_no_product_into_a_sum() -> None:
    """A fused product would change the last bits."""
    pytest.importorskip("triton", reason="triton is not installed")
    from eagle_aot.triton_kernels.gumbel_argmax import kernel

    constants = {**kernel.NOISE, "VOCAB": 262_144, "BLOCKS": 64, "BLOCK": kernel.BLOCK}
    constants |= {"HAS_IDS": True, "PERTURBS": True, "CHOOSES": True}
    kinds = dict.fromkeys(("logits_ptr", "scale_ptr", "table_ptr", "out_ptr"), "*fp32")
    kinds |= {"keys_ptr": "*i32", "ids_ptr": "*i32", "winners_ptr": "*i32"}
    ptx = ptx_for_h100(kernel.gumbel_kernel, kinds, constants, kernel.OPTIONS)
    assert "mul.rn.f32" in ptx and "add.rn.f32" in ptx, "without .rn an assembler may fuse them"
    assert not any(fused in ptx for fused in ("fma.", "mad.rn.f32", "mul.f32", "add.f32"))
