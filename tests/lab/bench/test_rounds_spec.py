"""What `eagle-bench --part rounds` measures of an artifact."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.artifact import Constants
from eagle_aot.common.errors import SettingError
from eagle_aot.lab.bench.rounds import DEFAULT_CONTEXTS, RoundsSpec, default_contexts

CONSTANTS = Constants(
    max_seq_len=1024, vocab_size=100, n_layers=1, min_prefill_chunk=9, max_prefill_chunk=64,
    sliding_window=64, chain_len=4, max_rows=64, max_step_rows=256, max_batch_size=1,
    tail=16, flat_slots=1120, draft_vocab_size=100, hidden_size=16, eos_ids=(),
)  # fmt: skip


def spec(**fields: Any) -> RoundsSpec:
    return RoundsSpec(artifact=Path("a"), **fields)


def test_forwards_have_at_most_the_rows_of_a_step() -> None:
    constants = replace(CONSTANTS, max_batch_size=4)
    fitted = spec(chain_lens=(4,), rows=(1, 8, 64), batch_sizes=(1, 4)).fitted(constants)
    single = [(1, 1), (1, 5), (1, 8), (1, 64)]
    assert fitted.verified_shapes(64) == [*single, (4, 1), (4, 5), (4, 8)]
    many = spec(rows=(1, 2), chain_lens=(4,), batch_sizes=(80,)).verified_shapes(64)
    assert many == [(1, 1), (1, 2), (1, 5), (80, 1)]


def test_lists_are_sorted_and_distinct() -> None:
    fitted = spec(contexts=(512, 128, 512), chain_lens=(4, 1), taus=(2.5, 2.0)).fitted(CONSTANTS)
    assert (fitted.contexts, fitted.chain_lens) == ((128, 512), (1, 4))
    assert fitted.taus == (2.0, 2.5)
    assert fitted.fitted(CONSTANTS) == fitted


def test_default_lengths_are_the_artifacts() -> None:
    fitted = spec().fitted(CONSTANTS)
    assert fitted.contexts == (128, 512, 960)
    assert spec(rows=(1,)).fitted(CONSTANTS).contexts == (128, 512, 1008)
    assert fitted.chain_lens == (1, 2, 3, 4, 5, 6, 7)


@given(longest=st.integers(1, 2**20))
def test_default_contexts_fit(longest: int) -> None:
    contexts = default_contexts(longest)
    assert 1 <= len(contexts) <= DEFAULT_CONTEXTS
    assert list(contexts) == sorted(set(contexts))
    assert contexts[-1] == longest


@pytest.mark.parametrize("tau", [0.0, -2.0, float("nan"), float("inf")])
def test_impossible_tau_is_refused(tau: float) -> None:
    with pytest.raises(SettingError, match="a round emits at least 1 token"):
        spec(taus=(2.0, tau))


def test_no_samples_are_refused() -> None:
    with pytest.raises(SettingError, match="--repeats 0: must be a whole number, at least 1"):
        spec(repeats=0)


@pytest.mark.parametrize(("fields", "message"), [
    ({"contexts": (128, 1009), "rows": (1,)}, "--contexts 1009: this artifact takes 1 to 1008"),
    ({"contexts": (0,), "rows": (1,)}, "--contexts 0: this artifact takes 1 to 1008"),
    ({"chain_lens": (16,)}, "--chain-lens 16: this artifact takes 1 to 15"),
    ({"rows": (65,)}, "--rows 65: this artifact takes 1 to 64"),
    ({"batch_sizes": (2,)}, "--batch-sizes 2: this artifact takes 1 to 1"),
])  # fmt: skip
def test_lengths_beyond_the_artifact_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        spec(**fields).fitted(CONSTANTS)


def test_shorter_tail_takes_shorter_chains() -> None:
    assert spec().fitted(replace(CONSTANTS, tail=4)).chain_lens == (1, 2, 3)
