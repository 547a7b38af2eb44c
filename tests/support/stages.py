"""What long stages leave in a log."""


def beside_stages(stderr: str) -> str:
    """Without the lines that tell a log of stages of several seconds, as there may be any number of
    on a slow machine."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if " s   host peak " not in line)
