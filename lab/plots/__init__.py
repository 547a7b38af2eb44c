"""Pictures of measurements; matplotlib is imported when one is drawn."""

from eagle_aot.lab.plots.acceptance import plot_acceptance
from eagle_aot.lab.plots.picture import check_plot
from eagle_aot.lab.plots.sequences import plot_sequences

__all__ = ["check_plot", "plot_acceptance", "plot_sequences"]
