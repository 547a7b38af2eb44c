"""The tables of `eagle-bench --part rounds`."""

from dataclasses import replace

from rich.console import Console

from eagle_aot.lab.bench.report import report
from eagle_aot.lab.bench.results import Results
from support.runner.made_up_results import made_up_context, made_up_results


def rendered(results: Results) -> str:
    console = Console(width=200, highlight=False)
    with console.capture() as capture:
        console.print(*report(results), sep="\n")
    return capture.get()


def cells(text: str, first: str) -> list[str]:
    """The line of a table that begins with `first`."""
    rows = [[c.strip() for c in line.strip("│").split("│")] for line in text.splitlines()]
    (row,) = [row for row in rows if row[0] == first]
    return row


def test_head_names_artifact_machine_and_memory() -> None:
    lines = rendered(made_up_results()).splitlines()
    assert lines[:5] == [
        "made-[up]-$pair$, aoti with CUDA graphs, a GPU, eagle3",
        "reads 2.0 GB/s; medians of 20 samples",
        "peak memory: target weights 8.00 GB, workspace 500.0 MB",
        "a sequence takes 4.90 GB of caches (target 4.60 GB, drafter 300.0 MB), all 2 of this "
        "artifact 9.80 GB, 3 more would fit here",
        "longest prefill chunk, target alone: 128 tokens in 32.0 ms: 4,000 tokens/s",
    ]
    assert lines[6] == "512 tokens of context (filled 512 tokens in 256.0 ms: 2,000 tokens/s)"


def test_forwards_are_compared_with_plain_decoding_and_the_floor() -> None:
    text = rendered(made_up_results())
    assert cells(text, "plain decode") == [
        "plain decode",
        "1",
        "1",
        "11.000",
        "1.00",
        "5.000",
        "2.20",
    ]
    assert cells(text, "draft step") == ["draft step", "1", "1", "1.000", "0.09", "-", "-"]


def test_rounds_project_only_possible_speeds() -> None:
    text = rendered(made_up_results())
    assert cells(text, "K = 2") == [
        "K = 2", "18.000", "17.000", "1.000", "2.000", "-", "2.50", "1.50",
        "111 (1.33x)", "167 (2.00x)", "-",
    ]  # fmt: skip
    assert cells(text, "plain") == [
        "plain", "12.000", "11.500", "0.500", "0.250", "1", "2.30", "1.00", "83.3", "83.3", "83.3",
    ]  # fmt: skip


def test_host_times_are_dashes_where_the_host_is_the_device() -> None:
    at = made_up_context()
    at = replace(at, rounds=tuple(replace(r, host_ms=None, launch_ms=None) for r in at.rounds))
    shown = cells(rendered(made_up_results(at)), "K = 2")
    assert shown[2:6] == ["18.000", "-", "-", "-"]


def test_unknown_floor_is_a_dash() -> None:
    at = made_up_context()
    at = replace(at, rounds=tuple(replace(r, floor=None) for r in at.rounds))
    assert cells(rendered(made_up_results(at)), "K = 2")[6] == "-"
