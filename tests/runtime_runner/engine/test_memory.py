"""Texts that share too little memory: who waits, who gives up memory, and what is then sent."""

from dataclasses import replace

from eagle_aot.runtime_runner.engine import Engine, Failed, Limits
from eagle_aot.runtime_runner.program.cache_pages import CachePages
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.engines import Requests, record, request_of, rounds_over, schedule_over
from support.runner.text_memory import TextMemory, paged
from support.runner.toy import VOCAB, SeeingDrafter, ToyTarget, plain_text

SEED = 5


def engine_of(sequences: int, capacity: int) -> tuple[Engine, CachePages, TextMemory]:
    target = ToyTarget(SEED, 16, 9, sequences=sequences)
    pages = paged(target, capacity)
    sampler = Sampler(sequences, "cpu", length=400, vocab=VOCAB)
    drafter = SeeingDrafter(target, [True, False])
    engine = Engine(schedule_over(rounds_over(target, drafter, record, sampler)), pages=pages)
    memory = pages._memory
    assert isinstance(memory, TextMemory)
    return engine, pages, memory


def test_the_youngest_gives_up_its_memory_and_runs_again() -> None:
    engine, _, memory = engine_of(4, 0)
    requests = Requests(engine)
    for i in range(4):
        requests.add(request_of([i], 250))
    requests.finish()
    assert requests.tokens == {i: plain_text([i], SEED, 250) for i in range(4)}
    assert engine.launches.preemptions > 0
    assert list(requests.ends) == sorted(requests.ends), "an older request ended later"
    assert memory.used() <= memory.capacity


def test_tokens_are_sent_once_and_stops_see_them_once() -> None:
    engine, _, _ = engine_of(3, 0)
    requests, seen = Requests(engine), dict[int, list[int]]()
    for i in range(3):
        seen[i] = []

        def is_stop(token: int, seen: list[int] = seen[i]) -> bool:
            seen.append(token)
            return False

        limits = Limits(max_new_tokens=250, stop_ids=frozenset(), is_stop=is_stop)
        requests.add(replace(request_of([i], 1), limits=limits))
    requests.finish()
    assert engine.launches.preemptions > 0
    assert seen == requests.tokens == {i: plain_text([i], SEED, 250) for i in range(3)}


def test_scores_of_a_prompt_are_sent_once() -> None:
    engine, _, _ = engine_of(2, 0)
    requests = Requests(engine)
    first = requests.add(request_of([1], 250))
    scoring = SamplingParams(prompt_logprobs=1)
    second = requests.add(request_of([2] * 200, 3, sampling=scoring))
    requests.finish()
    assert engine.launches.preemptions > 0
    assert len(requests.scored[second]) == 200 and len(requests.tokens[first]) == 250


def test_memory_stays_with_its_sequence_while_texts_come_and_go() -> None:
    engine, pages, memory = engine_of(8, 0)
    requests = Requests(engine)
    for i in range(12):
        requests.add(request_of([i] * 40, 5))
        requests.finish()
        if i == 3:
            held = [set(mapped) for mapped in memory.mapped]
            assert sum(map(pages.holds, range(8))) < 4, "there is memory for fewer"
    assert memory.mapped == held


def test_a_longer_text_keeps_its_rows_where_others_lose_theirs() -> None:
    engine, _, _ = engine_of(4, 0)
    engine.schedule.target.can_copy_rows = False
    requests = Requests(engine)
    for i in (2, 1):
        requests.add(request_of([i] * 60, 5, reuse=True))
        requests.finish()
    longer = requests.add(request_of([1] * 250, 5, reuse=True))
    requests.finish()
    assert requests.reused[longer] > 40


def test_requests_wait_in_their_order_until_there_is_memory() -> None:
    engine, pages, _ = engine_of(4, 0)
    requests = Requests(engine)
    long = requests.add(request_of([1] * 250, 20))
    others = [requests.add(request_of([i] * 150, 5)) for i in range(2, 5)]
    requests.step()
    assert not pages.holds(3)
    requests.finish()
    assert list(requests.ends) == [long, *others]


def test_free_sequences_keep_their_rows_until_memory_is_needed() -> None:
    engine, _, memory = engine_of(4, 0)
    requests = Requests(engine)
    requests.add(request_of([1] * 60, 5, reuse=True))
    requests.finish()
    again = requests.add(request_of([1] * 60, 5, reuse=True))
    requests.finish()
    assert requests.reused[again] > 40
    for i in range(2, 5):
        requests.add(request_of([i] * 150, 100))
    requests.finish()
    last = requests.add(request_of([1] * 60, 5, reuse=True))
    requests.finish()
    assert requests.reused[last] == 0
    assert memory.used() <= memory.capacity


def test_a_request_fails_where_others_have_taken_the_memory() -> None:
    engine, _, memory = engine_of(2, 0)
    memory.capacity = 1
    requests = Requests(engine)
    number = requests.add(request_of([1], 5))
    requests.finish()
    failed = requests.failed[number]
    assert isinstance(failed, Failed) and failed.is_expected
    assert failed.error.startswith("the GPU has no memory left for caches of 1 tokens")
