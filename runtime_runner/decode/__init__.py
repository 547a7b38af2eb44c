"""One round: draft, verify, accept, reseed, and what it is made of."""
