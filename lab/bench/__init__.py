"""What the parts of a round cost on this machine, as ratios within one run."""
