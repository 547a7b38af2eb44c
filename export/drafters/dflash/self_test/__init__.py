"""The ways in which a DFlash head's files could be meant, each drafting the target's own text."""
