"""Text from files that are not trusted, for a terminal."""


def printable(text: str) -> str:
    """`text` with U+FFFD for line ends and for all that a terminal would obey instead of show."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
