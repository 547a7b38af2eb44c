"""`eagle-bench`: what the parts of a round cost, in ratios within one run."""

import json
from pathlib import Path

import click
from rich.console import Console

from eagle_aot.common.command import eagle_command
from eagle_aot.lab.bench.results import Results
from eagle_aot.runtime_runner.options import drafter_option

REPORT_WIDTH = 200  # columns, where stdout is no terminal: nothing needs to wrap


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--contexts", metavar="N,...", help="Tokens in the caches; default: a few lengths that fit."
)
@click.option("--chain-lens", default="all", show_default=True, metavar="K,...",
              help="Drafts per round.")  # fmt: skip
@click.option("--tree", "trees", multiple=True, metavar="DEPTH,TOPK,NODES",
              help="A tree as well; may be given more than once.")  # fmt: skip
@drafter_option
@click.option("--rows", default="1,2,4,8,16,32,64", show_default=True, metavar="N,...",
              help="Rows to verify of each sequence.")  # fmt: skip
@click.option("--batch-sizes", default="1", show_default=True, metavar="B,...",
              help="Sequences in one forward.")  # fmt: skip
@click.option("--tau", default="2,3,4", show_default=True, metavar="X,...",
              help="Tokens per round to project speeds for.")  # fmt: skip
@click.option("--repeats", type=int, default=20, show_default=True, metavar="N",
              help="Samples per figure, of which the median counts.")  # fmt: skip
@click.option("--executor", type=click.Choice(["auto", "aoti", "executorch"]), default="auto",
              show_default=True)  # fmt: skip
@click.option("--no-cuda-graph", is_flag=True, help="Launch every kernel of a round by itself.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE.png",
              help="Draw where a round's time goes.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    artifact: Path,
    contexts: str | None,
    chain_lens: str,
    trees: tuple[str, ...],
    drafter: str | None,
    rows: str,
    batch_sizes: str,
    tau: str,
    repeats: int,
    executor: str,
    no_cuda_graph: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Time plain decoding, verification, drafting and whole rounds of ARTIFACT.

    On random text, with tau as given: what drafts are worth on your own text is what eagle-run
    reports.
    """
    from eagle_aot.lab.bench.settings import Settings
    from eagle_aot.lab.plots.picture import check_plot
    from eagle_aot.lab.plots.rounds import plot_rounds

    graphs = not no_cuda_graph
    settings = Settings.parse(contexts, chain_lens, tau, repeats, graphs, rows, batch_sizes, trees)
    if picture is not None:
        check_plot(picture)
    from eagle_aot.common.progress import Progress
    from eagle_aot.lab.bench.measure import Bench  # imports torch
    from eagle_aot.lab.bench.memory import bytes_in_use
    from eagle_aot.runtime_runner.load import load_artifact

    in_use_before = bytes_in_use()
    progress = Progress()
    with progress.stage("load"):
        graphs = settings.cuda_graphs
        runner = load_artifact(artifact, executor, cuda_graphs=graphs, drafter=drafter)
    results = Bench(runner, settings, progress, in_use_before).run()
    show(results, as_json)
    if picture is not None:
        plot_rounds(results, picture)


def show(results: Results, as_json: bool) -> None:
    """Print them, as one JSON object or for a person."""
    from eagle_aot.lab.bench.report import report, to_json

    if as_json:
        click.echo(json.dumps(to_json(results)))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = REPORT_WIDTH
    console.print(*report(results), sep="\n")
