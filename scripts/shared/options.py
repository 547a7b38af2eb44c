"""Options that scripts have in common."""

import click

from eagle_aot.artifact import DRAFTERS

drafter_option = click.option(
    "--drafter",
    type=click.Choice(list(DRAFTERS)),
    help="What drafts; default: the artifact's own.",
)
no_cuda_graph_option = click.option(
    "--no-cuda-graph", is_flag=True, help="Launch every kernel of a round by itself."
)
commit_option = click.option("--commit", help="Default: what git says of the package.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
