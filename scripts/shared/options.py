"""Options that scripts have in common."""

import click

from eagle_aot.runtime_runner.options import drafter_option

__all__ = ["commit_option", "drafter_option", "json_option", "no_cuda_graph_option"]

no_cuda_graph_option = click.option(
    "--no-cuda-graph", is_flag=True, help="Launch every kernel of a round by itself."
)
commit_option = click.option("--commit", help="Default: what git says of the package.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
