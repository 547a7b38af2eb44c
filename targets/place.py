"""Where a checkpoint lies: a directory with a config.json, or a GGUF file that is all there is."""

from pathlib import Path

CONFIG = "config.json"
VISION_GGUF = "mmproj"  # llama.cpp's name for an encoder that lies beside a text model
MOST_NAMES = 5
"""Of a directory's content that an error line quotes."""

ITS_DIRECTORY = "name the directory that holds it and its config.json"
FILES = {
    **dict.fromkeys((".safetensors", ".bin", ".pt", ".pth"), f"weights alone: {ITS_DIRECTORY}"),
    ".json": "one file of a checkpoint: name its directory",
    ".pte": "a compiled program, which is what an export writes",
    **dict.fromkeys((".whl", ".zip", ".tar", ".gz"), "an archive: unpack it, name what is in it"),
}
"""What a file is instead of a checkpoint, by its suffix."""


def bare_gguf(path: Path) -> Path | None:
    """The GGUF file that is all of a checkpoint: `path`, or the only one in it without a config.

    None for a directory with a config.json, and for what is no checkpoint.
    """
    if not path.is_dir():
        return path if path.suffix == ".gguf" and path.is_file() else None
    if (path / CONFIG).is_file():
        return None
    found = text_ggufs(path)
    return found[0] if len(found) == 1 else None


def is_checkpoint(path: Path) -> bool:
    """Whether a config is to be had: nothing is opened, so weights may still be missing."""
    return (path / CONFIG).is_file() or bare_gguf(path) is not None


def text_ggufs(directory: Path) -> list[Path]:
    """The GGUF files of text models in a directory, in the order of their names."""
    found = sorted(directory.glob("*.gguf"))
    return [path for path in found if not path.name.startswith(VISION_GGUF)]


def no_checkpoint(path: Path) -> str:
    """What a path is that is neither a directory with a config.json nor a GGUF, in one line."""
    if path.is_dir():
        return _no_directory(path)
    if not path.exists():
        return f"{path}: no such checkpoint directory or .gguf file"
    if _is_gguf(path):
        return f"{path}: a GGUF file: give its name the suffix .gguf"
    what = FILES.get(path.suffix, "neither a checkpoint directory nor a .gguf file")
    return f"{path}: {what}"


def _no_directory(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    if "model.pte" in names:
        return f"{path}: an artifact that an export wrote: eagle-run runs it"
    if files := text_ggufs(path):
        return f"{path}: {len(files)} GGUF files and no {CONFIG}: name one, {files[0]}"
    more = ", ..." if len(names) > MOST_NAMES else ""
    holds = f"holds {', '.join(names[:MOST_NAMES])}{more}" if names else "is empty"
    return f"{path / CONFIG}: no such file, and no .gguf that needs none: the directory {holds}"


def _is_gguf(path: Path) -> bool:
    """Whether a file of whatever name begins as GGUF does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"
