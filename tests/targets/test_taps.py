"""Choosing the hidden states that are returned for a draft head."""

from typing import Any

import pytest
import torch

from eagle_aot.common.errors import SettingError
from eagle_aot.targets import TapTarget, load_target
from support.gemma_oracle import random_gemma, random_tokens, run_in_chunks, save_text_layout

LAYERS = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TapTarget:
    return load_target(save_text_layout(random_gemma(), tmp_path_factory.mktemp("gemma")), 64)


@pytest.mark.parametrize(
    "layers", [[99], [LAYERS + 1], [-1], [1, 1], [1.0, 2], [True], [False, 2], [3, 1], ["1"]]
)
def test_invalid_tap_layers_are_refused_and_change_nothing(
    target: TapTarget, layers: list[Any]
) -> None:
    target.set_eagle_tap_layers([2])
    with pytest.raises(SettingError, match="tap layers"):
        target.set_eagle_tap_layers(layers)
    target.reset_cache()
    assert run_in_chunks(target, random_tokens(3), [3])[1].shape[0] == 1


@pytest.mark.parametrize("layers", [[0], [4], [1, 2], [0, 2, 4], [0, 1, 2, 3, 4]])
def test_taps_are_the_chosen_boundaries_in_ascending_order(
    target: TapTarget, layers: list[int]
) -> None:
    tokens = random_tokens(20)
    target.set_eagle_tap_layers(range(LAYERS + 1))
    target.reset_cache()
    all_logits, everything = run_in_chunks(target, tokens, [7])
    target.set_eagle_tap_layers(layers)
    target.reset_cache()
    logits, taps = run_in_chunks(target, tokens, [7])
    assert torch.equal(taps, everything[layers])
    assert torch.equal(logits, all_logits)
    assert len({float(states.sum()) for states in everything}) == LAYERS + 1


def test_logits_do_not_change_when_taps_are_switched_off(target: TapTarget) -> None:
    tokens = random_tokens(20)
    target.set_eagle_tap_layers([0, 3])
    target.reset_cache()
    tapped, _ = run_in_chunks(target, tokens, [7])
    target.set_eagle_tap_layers([])
    target.reset_cache()
    plain = []
    for start in range(0, 20, 7):
        input_pos = torch.arange(start, min(start + 7, 20))
        logits, taps = target.forward_logits_taps(tokens[:, input_pos], input_pos)
        assert taps.shape == (1, len(input_pos), 0)
        plain.append(logits[0])
    assert torch.equal(torch.cat(plain), tapped)


def test_last_logits_only_is_the_last_row_with_all_taps(target: TapTarget) -> None:
    tokens, input_pos = random_tokens(9), torch.arange(9)
    target.set_eagle_tap_layers([1, 4])
    target.reset_cache()
    logits, taps = target.forward_logits_taps(tokens, input_pos)
    target.reset_cache()
    last, same_taps = target.forward_logits_taps(tokens, input_pos, last_logits_only=True)
    assert logits.shape[1] == 9 and last.shape[1] == 1
    torch.testing.assert_close(last, logits[:, -1:], rtol=1e-6, atol=1e-6)
    assert torch.equal(taps, same_taps)
