"""What lies at a checkpoint's path: a directory with a config.json, or a single GGUF file."""

from pathlib import Path

CONFIG = "config.json"
VISION_GGUF = "mmproj"  # how llama.cpp's names of image encoders begin
QUOTED_NAMES = 5
"""How many names of a directory's content an error line quotes."""

WEIGHTS_ALONE = "weights alone: name the directory that holds it and its config.json"
OTHER_FILES = {
    **dict.fromkeys((".safetensors", ".bin", ".pt", ".pth"), WEIGHTS_ALONE),
    ".json": "one file of a checkpoint: name its directory",
    ".pte": "a compiled program, which is what an export writes",
    **dict.fromkeys((".whl", ".zip", ".tar", ".gz"), "an archive: unpack it, name what is in it"),
}
"""What files with these suffixes are instead of a checkpoint."""


def bare_gguf(path: Path) -> Path | None:
    """Return the GGUF file that is a checkpoint by itself: `path`, or the only one inside it.

    Returns None for a directory with a config.json, and for anything that is no checkpoint.
    """
    if not path.is_dir():
        return path if path.suffix == ".gguf" and path.is_file() else None
    if (path / CONFIG).is_file():
        return None
    files = text_ggufs(path)
    return files[0] if len(files) == 1 else None


def is_checkpoint(path: Path) -> bool:
    """Whether `path` has a config; no file is opened, so weights may still be missing."""
    return (path / CONFIG).is_file() or bare_gguf(path) is not None


def text_ggufs(directory: Path) -> list[Path]:
    """Return the GGUF files of text models in a directory, sorted by name."""
    files = sorted(directory.glob("*.gguf"))
    return [path for path in files if not path.name.startswith(VISION_GGUF)]


def why_no_checkpoint(path: Path) -> str:
    """Say in one line what `path` is instead of a directory with a config.json or a GGUF file."""
    if path.is_dir():
        return _why_no_directory(path)
    if not path.exists():
        return f"{path}: no such checkpoint directory or .gguf file"
    if _is_gguf(path):
        return f"{path}: a GGUF file: give its name the suffix .gguf"
    reason = OTHER_FILES.get(path.suffix, "neither a checkpoint directory nor a .gguf file")
    return f"{path}: {reason}"


def _why_no_directory(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    if "model.pte" in names:
        return f"{path}: an artifact that an export wrote: eagle-run runs it"
    if files := text_ggufs(path):
        return f"{path}: {len(files)} GGUF files and no {CONFIG}: name one, {files[0]}"
    more = ", ..." if len(names) > QUOTED_NAMES else ""
    holds = f"holds {', '.join(names[:QUOTED_NAMES])}{more}" if names else "is empty"
    return f"{path / CONFIG}: no such file, and no .gguf that needs none: the directory {holds}"


def _is_gguf(path: Path) -> bool:
    """Whether a file with another suffix begins as GGUF files do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"
