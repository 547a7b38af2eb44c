"""Which token follows: a choice that depends on nothing but a text, its parameters and its seed."""
