"""Options, read and checked."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.artifact import Constants
from eagle_aot.common.errors import SettingError
from eagle_aot.lab.bench.settings import (
    DEFAULT_CONTEXTS,
    Settings,
    default_contexts,
    numbers,
)

CONSTANTS = Constants(
    max_seq_len=1024, vocab_size=100, n_layers=1, min_prefill_chunk=9, max_prefill_chunk=64,
    sliding_window=64, chain_len=4, max_rows=64, max_batch_size=1,
    tail=16, flat_slots=1120, draft_vocab_size=100, hidden_size=16, eos_ids=(),
)  # fmt: skip


def parse(
    contexts: str | None = None,
    chain_lens: str = "all",
    tau: str = "2,3",
    repeats: int = 5,
    rows: str = "1",
    batch_sizes: str = "1",
) -> Settings:
    return Settings.parse(contexts, chain_lens, tau, repeats, True, rows, batch_sizes)


def test_a_forward_is_as_long_as_a_step_may_be() -> None:
    constants = replace(CONSTANTS, max_batch_size=4)
    settings = parse(chain_lens="4", rows="1,8,64", batch_sizes="1,4").fitted(constants)
    alone = [(1, 1), (1, 5), (1, 8), (1, 64)]
    assert settings.shapes(64) == [*alone, (4, 1), (4, 5), (4, 8)]


def test_lists_are_sorted_and_distinct() -> None:
    assert numbers("--x", "8,2, 4,2", int) == (2, 4, 8)
    settings = parse("512,128", "4,1", "2.5,2")
    assert settings.fitted(CONSTANTS) == settings
    assert (settings.contexts, settings.chain_lens) == ((128, 512), (1, 4))
    assert settings.taus == (2.0, 2.5)


def test_what_is_not_given_is_the_artifacts() -> None:
    settings = parse().fitted(CONSTANTS)
    assert settings.contexts == (128, 512, 1008)
    assert settings.chain_lens == (1, 2, 3, 4, 5, 6, 7)


@given(longest=st.integers(1, 2**20))
def test_default_contexts_fit(longest: int) -> None:
    contexts = default_contexts(longest)
    assert 1 <= len(contexts) <= DEFAULT_CONTEXTS
    assert list(contexts) == sorted(set(contexts))
    assert contexts[-1] == longest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": "0"}, "--tau 0: a round emits at least 1 token"),
        ({"tau": "-2,3"}, "at least 1 token"),
        ({"tau": "nan"}, "at least 1 token"),
        ({"tau": "inf"}, "at least 1 token"),
        ({"tau": "two"}, "--tau 'two': expected numbers with commas between"),
        ({"contexts": ""}, "--contexts '': expected numbers"),
        ({"contexts": "1.5"}, "--contexts '1.5': expected numbers"),
        ({"chain_lens": "1,"}, "--chain-lens '1,': expected numbers"),
        ({"repeats": 0}, "--repeats 0: must be at least 1"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, str | int], message: str) -> None:
    with pytest.raises(SettingError, match=message.replace("(", r"\(")):
        parse(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contexts": "128,1009"}, "--contexts 1009: this artifact takes 1 to 1008"),
        ({"contexts": "0"}, "--contexts 0: this artifact takes 1 to 1008"),
        ({"chain_lens": "16"}, "--chain-lens 16: this artifact takes 1 to 15"),
        ({"rows": "65"}, "--rows 65: this artifact takes 1 to 64"),
        ({"batch_sizes": "2"}, "--batch-sizes 2: this artifact takes 1 to 1"),
    ],
)
def test_what_the_artifact_does_not_reach_is_refused(
    arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        parse(**arguments).fitted(CONSTANTS)  # type: ignore[arg-type]


def test_a_shorter_tail_takes_shorter_chains() -> None:
    small = replace(CONSTANTS, tail=4)
    assert parse().fitted(small).chain_lens == (1, 2, 3)
