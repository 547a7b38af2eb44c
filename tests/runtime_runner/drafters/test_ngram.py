"""Prompt lookup against plain Python, over texts, chunks, rounds and batches."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prefill import prefill
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.drafters.ngram import LONGEST, NgramDrafter
from support.files.artifact import CONSTANTS
from support.runner.toy import TAIL, VOCAB, ToyTarget, plain_text

FEW = st.integers(0, 2)  # ids: texts that repeat themselves
NO_FEATURES = torch.empty(0)
ROOMY = replace(CONSTANTS, max_seq_len=96, max_batch_size=5)


def looked_up(text: Sequence[int], count: int) -> list[int]:
    """Return the drafts after a text whose first token is not observed."""
    for n in range(min(LONGEST, len(text) - 2), 0, -1):
        for start in range(len(text) - n - 1, 0, -1):
            if text[start : start + n] == text[-n:]:
                longer = list(text)
                for i in range(count):
                    longer.append(longer[start + n + i])
                return longer[len(text) :]
    return [text[-1]] * count


def observe(drafter: NgramDrafter, text: Sequence[int], cuts: Sequence[int], sequence: int) -> None:
    """Let a drafter observe a text in chunks that end at `cuts`."""
    ends = sorted({cut for cut in cuts if cut < len(text) - 1} | {len(text) - 1})
    for start, end in zip([0, *ends], ends, strict=False):
        following = torch.tensor([list(text[start + 1 : end + 1])])
        path = committed(following, torch.arange(start, end), torch.tensor([sequence]))
        drafter.observe(path, NO_FEATURES)


def proposed(drafter: NgramDrafter, lengths: dict[int, int], count: int) -> list[list[int]]:
    """Return drafts for sequences with texts of these lengths in one batch; 0 is padding."""
    running = BatchState(list(lengths), TAIL, "cpu")
    running.position.copy_(torch.tensor(list(lengths.values())) - 1)
    draft = drafter.propose(running, Shape.chain(count))
    assert draft.parents is None
    return draft.tokens.tolist()


@settings(max_examples=400, deadline=None)
@given(
    earlier=st.lists(FEW, min_size=2, max_size=90),
    text=st.lists(FEW, min_size=2, max_size=90),
    cuts=st.lists(st.integers(1, 88), max_size=4),
    count=st.integers(1, 15),
)
def test_drafts_are_what_followed_the_last_tokens(
    earlier: list[int], text: list[int], cuts: list[int], count: int
) -> None:
    """However the text is cut, and whatever the cache held before."""
    drafter = NgramDrafter(ROOMY, "cpu")
    for tokens in (earlier, text):
        observe(drafter, tokens, cuts, 0)
        assert proposed(drafter, {0: len(tokens)}, count) == [looked_up(tokens, count)]


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.lists(FEW, min_size=2, max_size=60), min_size=2, max_size=4), data=st.data()
)
def test_every_sequence_is_looked_up_in_its_own_text(
    texts: list[list[int]], data: st.DataObject
) -> None:
    drafter = NgramDrafter(ROOMY, "cpu")
    for sequence, text in enumerate(texts):
        observe(drafter, text, [], sequence)
    order = data.draw(st.permutations(range(len(texts))))
    lengths = {s: len(texts[s]) for s in order} | {ROOMY.max_batch_size - 1: 0}
    *drafts, _ = proposed(drafter, lengths, 5)
    assert drafts == [looked_up(texts[s], 5) for s in order]


@settings(max_examples=100, deadline=None)
@given(text=st.lists(FEW, min_size=3, max_size=60), late=st.integers(1, 58))
def test_catching_up_returns_which_tokens_it_would_have_drafted(text: list[int], late: int) -> None:
    observed = max(2, len(text) - late)
    drafter = NgramDrafter(ROOMY, "cpu")
    observe(drafter, text[:observed], [], 0)
    backlog = Backlog(drafter, 64, BatchState([0], TAIL, "cpu"))
    expected = backlog.catch_up(observed - 1, text[observed:])
    positions = range(observed, len(text))
    assert expected == [looked_up(text[:i], 1) == [text[i]] for i in positions]
    assert proposed(drafter, {0: len(text)}, 4) == [looked_up(text, 4)]


def test_plain_rounds_are_observed_at_once() -> None:
    """Without catching up."""
    prompt, seed = [1, 2, 3], 4
    drafter, running = NgramDrafter(ROOMY, "cpu"), BatchState([0], TAIL, "cpu")
    plain = Round(ToyTarget(seed, 16, 9), Backlog(drafter, 2, running), 0, running)
    text = prompt + plain_text(prompt, seed, 31)
    prefill(plain, prompt, Stats(chain_len=0))
    for _ in range(30):
        plain.run()
    assert proposed(drafter, {0: len(text)}, 6) == [looked_up(text, 6)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prompts=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), min_size=1, max_size=4
    ),
    chain_len=st.integers(1, 15),
    stopped=st.integers(0, 20),
)
def test_drafts_change_no_text_of_a_batch(
    seed: int, prompts: list[list[int]], chain_len: int, stopped: int
) -> None:
    """One sequence stops early and another never begins."""
    length, last = 20, len(prompts) - 1
    expected = [plain_text(prompt, seed, 60) for prompt in prompts]
    target = ToyTarget(seed, 16, 9, sequences=len(prompts) + 1)
    drafter, running = NgramDrafter(ROOMY, "cpu"), BatchState(range(len(prompts) + 1), TAIL, "cpu")
    round_ = Round(target, drafter, chain_len, running)
    outputs = [
        [prefill(round_, prompt, Stats(chain_len=chain_len), index)]
        for index, prompt in enumerate(prompts)
    ]
    for number in range(length):
        if number == stopped:
            running.stop(last)
        for index, (accepted, *tokens) in enumerate(round_.run().tolist()[: len(prompts)]):
            if index != last or number < stopped:
                outputs[index] += tokens[: accepted + 1]
    for index, output in enumerate(outputs):
        assert output == expected[index][: len(output)]
        text = prompts[index] + output
        assert proposed(drafter, {index: len(text)}, 6) == [looked_up(text, 6)]


def test_the_last_round_may_exceed_the_context() -> None:
    drafter = NgramDrafter(CONSTANTS, "cpu")
    first, rows = CONSTANTS.max_seq_len - 2, torch.arange(CONSTANTS.tail)
    path = Accepted(
        count=rows[-1:], rows=rows[None], tokens=rows[None], slots=rows[None],
        bonus_position=torch.tensor([first]), sequences=torch.tensor([1]),
    )  # fmt: skip
    drafter.observe(path, NO_FEATURES)
    assert proposed(drafter, {1: first + 1 + CONSTANTS.tail}, 2) == [[15, 15]]


@pytest.mark.parametrize(("text", "drafts"), [
    ([9, 1, 2, 3, 7, 8, 1, 2, 3], [7, 8, 1, 2]),  # three tokens
    ([9, 1, 2, 3, 7, 8, 2, 3, 5, 6, 2, 3], [5, 6, 2, 3]),  # the latest of equals
    ([9, 4, 1, 2, 3, 7, 8, 2, 3, 5, 1, 2, 3], [7, 8, 2, 3]),  # more tokens before later ones
    ([9, 1, 2, 1, 2], [1, 2, 1, 2]),  # beyond the end
    ([9, 1, 2, 3], [3, 3, 3, 3]),  # nothing
    ([5, 6, 7, 5], [5, 5, 5, 5]),  # the first token is not observed
])  # fmt: skip
def test_the_longest_and_latest_match_is_continued(text: list[int], drafts: list[int]) -> None:
    drafter = NgramDrafter(ROOMY, "cpu")
    observe(drafter, text, [], 0)
    assert proposed(drafter, {0: len(text)}, 4) == [drafts] == [looked_up(text, 4)]


def test_a_text_continues_from_rows_that_were_recalled() -> None:
    """They are of a plain text, or of another sequence."""
    drafter = NgramDrafter(ROOMY, "cpu")
    text = [1, 2, 0, 1, 2, 2, 0, 1]
    observe(drafter, [0] * 9, [], 1)
    for sequence in (1, 3):
        drafter.restore_prefix(torch.tensor([text]), torch.tensor([sequence]))
    lengths = {1: len(text), 3: len(text)}
    assert proposed(drafter, lengths, 4) == [looked_up(text, 4)] * 2
