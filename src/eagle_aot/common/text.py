"""Text from files that are not trusted, for a terminal."""

LONGEST_LINE = 800
"""Characters of a line: it may quote a file that holds anything."""


def printable(text: str) -> str:
    """`text` with U+FFFD for line ends and for all that a terminal would obey instead of show."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def one_line(text: str) -> str:
    """Without line ends and escape sequences, and cut in the middle where it is long: its end says
    what to do."""
    line = printable(" ".join(text.split()))
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"


def gigabytes(count: int) -> str:
    """Bytes in GB, in MB where there is less than one."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
