"""Does the drafter read this target as it was trained to? What surrounds each kind's own answer."""
