"""Options that commands which open an artifact have in common."""

import click

AUTO_DRAFTER = "auto"
"""Any drafter that an artifact holds or prompt lookup, by what they are worth."""

drafter_option = click.option(
    "--drafter",
    metavar="NAME|auto",
    help="What drafts: one that the artifact holds, ngram, or auto, the fastest of all these; "
    "default: the first that it holds.",
)
