"""Random JSON schemas have valid answers, whatever is drafted and cancelled; damaged schemas are
refused in one line."""

import json
import random
import time
from pathlib import Path

import jsonschema
import llguidance
import numpy as np
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.sampling.constraint import (
    LAYOUT,
    Constraint,
    DraftRows,
    GrammarCompiler,
)
from fuzz.campaign import cases, is_campaign
from support.json_schemas import damaged, random_schema

VOCABULARY = Path(__file__).parents[2] / "targets" / "tiny" / "target" / "tokenizer.json"
TOKENIZER = Tokenizer.from_file(str(VOCABULARY))
VOCAB, STOP = TOKENIZER.get_vocab_size(), 1
WIDTH = -(-VOCAB // 32) * 4
LLTOKENIZER = llguidance.LLTokenizer(str(VOCABULARY), n_vocab=VOCAB, eos_token=[STOP])
COMPILER = GrammarCompiler(VOCABULARY, VOCAB, [STOP])
SEEDS = st.integers(0, 2**32)
MOST_TOKENS, SECONDS = 300, 5.0
WALKED = 100
"""In a campaign, the masks of one schema in so many are compared with a walk."""


def allowed(constraint: Constraint, rows: DraftRows | None = None) -> list[set[int]]:
    """Return the tokens that may follow each row, by default the answer alone."""
    rows = rows or DraftRows([0], [[]])
    bitmask = torch.full((len(rows.tokens), WIDTH), 0, dtype=torch.uint8)
    constraint.fill(rows, bitmask)
    bits = np.unpackbits(bitmask.numpy(), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


def random_drafts(rng: random.Random, likely: set[int]) -> DraftRows:
    """Return a random tree of drafts; some may follow the answer."""
    count = rng.randint(1, 7)
    children: list[list[int]] = [[] for _ in range(count)]
    for row in range(1, count):
        children[rng.randrange(row)].append(row)
    choices = [*sorted(likely), *rng.sample(range(VOCAB), 3)]
    return DraftRows([rng.choice(choices) for _ in range(count)], children)


def draft(constraint: Constraint, rng: random.Random, likely: set[int]) -> None:
    """Follow drafts as a round does: every token that must come is one that may."""
    forced = constraint.look_ahead(torch.zeros(WIDTH, dtype=torch.uint8))
    assert not forced or forced[0] in likely
    rows = random_drafts(rng, likely)
    constraint.repair(rows)
    assert allowed(constraint, rows)[0] == likely


@cases(suite=25, campaign=10_000)
@given(seed=SEEDS)
def test_answers_of_random_schemas_are_valid(seed: int) -> None:
    """Random tokens of the masks, to the end, with drafts before each. A second answer of the same
    form is cancelled anywhere. Masks are those of a walk token by token."""
    rng = random.Random(seed)
    schema = random_schema(rng)
    constraint, cancelled = (COMPILER.compile("json_schema", schema) for _ in range(2))
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=LAYOUT)
    walk = llguidance.LLMatcher(LLTOKENIZER, grammar)
    is_walked = not is_campaign() or rng.randrange(WALKED) == 0
    answer, last, started = list[int](), rng.randrange(40), time.process_time()
    while STOP not in answer and len(answer) < MOST_TOKENS:
        (tokens,) = allowed(constraint)
        if is_walked:
            walked = {i for i in range(VOCAB) if i != STOP and walk.validate_tokens([i]) == 1}
            is_canonical = len(tokens) == 1 and tokens < walked  # a forced text's usual tokens
            assert tokens - {STOP} == walked or is_canonical
        draft(constraint, rng, tokens)
        answer.append(STOP if STOP in tokens else rng.choice(sorted(tokens)))
        constraint.advance(answer[-1])
        assert walk.consume_token(answer[-1])
        if len(answer) < last:
            cancelled.advance(answer[-1])
        elif len(answer) == last:  # its drafts are followed, and it is never heard of again
            draft(cancelled, rng, allowed(cancelled)[0])
            del cancelled
    assert time.process_time() - started < SECONDS
    event("ended" if STOP in answer else "cut")
    if STOP in answer:
        text = TOKENIZER.decode(answer[:-1], skip_special_tokens=False)
        jsonschema.validate(json.loads(text), schema)


@cases(suite=40, campaign=5_000)
@given(seed=SEEDS)
def test_damaged_schemas_are_read_or_refused_in_one_line(seed: int) -> None:
    rng = random.Random(seed)
    text, started = damaged(random_schema(rng), rng), time.process_time()
    try:
        COMPILER.compile("json_schema", text)
        event("read")
    except SettingError as error:
        assert "\n" not in str(error)
        event("refused")
    assert time.process_time() - started < SECONDS
