"""The ways in which an EAGLE-3 head's files could be meant, each drafting the target's own text."""
