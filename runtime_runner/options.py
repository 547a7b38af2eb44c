"""Options that commands which open an artifact have in common."""

import click

drafter_option = click.option(
    "--drafter",
    metavar="KIND",
    help="What drafts: the artifact's own drafter, by its kind, or ngram; default: the artifact's.",
)
