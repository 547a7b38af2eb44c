"""The ways in which an assistant may read its target, each drafting the target's own text."""
