"""Damaged, foreign and hostile artifacts, which `eagle-run` must refuse."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eagle_aot.artifact import MANIFEST, PROGRAM, WEIGHTS
from faults.fault import Arguments, CannotMake, Fault
from faults.scene import (
    QUESTION,
    Scene,
    blank,
    cut,
    edit_json,
    edit_part,
    flip,
    rehash,
    write,
)

Damage = Callable[[Path], object]
HASH = "does not match its hash in manifest.json"
UNLISTED = "special_tokens_map.json"
STOP = "{{ raise_exception('no') }}"


def artifact_faults() -> Iterator[Fault]:
    """All of them."""
    yield from program_faults()
    yield from manifest_faults()
    yield from tokenizer_faults()


def damaged(
    name: str,
    damage: Damage,
    says: str,
    copy: Callable[[Scene], Path] = Scene.artifact,
    **more: Any,
) -> Fault:
    """A copy of an artifact, the good one or another, with something done to it."""

    def arrange(scene: Scene) -> Arguments:
        artifact = copy(scene)
        damage(artifact)
        return asking(artifact)

    return Fault(name=name, arrange=arrange, says=says, **more)


def asking(artifact: Path) -> Arguments:
    """One question."""
    return [artifact, "--prompt", QUESTION, "--json"]


def changed_file(name: str, copy: Callable[[Scene], Path]) -> Iterator[Fault]:
    """A file that is no longer what the manifest says; `copy` makes an artifact that has it."""
    for share in (0.0, 0.5, 1.0):
        yield damaged(
            f"{name}: bit flipped at {share:.0%}",
            lambda a, share=share: flip(a / name, share),
            HASH,
            copy,
        )
    changes: dict[str, tuple[Damage, str]] = {
        "cut in half": (lambda a: cut(a / name, 0.5), "manifest.json says"),
        "empty": (lambda a: cut(a / name, 0), "has 0 bytes"),
        "1 MB too long": (lambda a: _append(a / name, bytes(2**20)), "manifest.json says"),
        "missing": (lambda a: (a / name).unlink(), "missing: export again"),
        "a directory": (lambda a: _directory(a / name), "missing"),
        "a pipe nobody writes": (lambda a: _pipe(a / name), "missing"),
        "a link to /dev/zero": (lambda a: _link_to_zero(a / name), "a link that leads out"),
    }
    for what, (change, says) in changes.items():
        yield damaged(f"{name}: {what}", change, says, copy)


def program_faults() -> Iterator[Fault]:
    """`model.pte`, with the hash of the good one and its own, and a tied table's `model.ptd`."""
    yield from changed_file(PROGRAM, Scene.artifact)
    yield damaged(
        f"{PROGRAM}: cut in half, its hash corrected",
        lambda a: (cut(a / PROGRAM, 0.5), rehash(a)),
        "not a readable ExecuTorch program",
    )
    yield damaged(
        f"{PROGRAM}: first bytes gone, its hash corrected",
        lambda a: (blank(a / PROGRAM), rehash(a)),
        "not a readable ExecuTorch program",
    )
    yield damaged(
        f"{WEIGHTS} of a CPU's: cut in half, its hash corrected",
        _half_a_table,
        "not a readable ExecuTorch program",
    )
    yield damaged(
        f"{UNLISTED}: not of this artifact",
        lambda a: write(a / UNLISTED, b"{}"),
        "not listed in manifest.json",
    )


def _half_a_table(artifact: Path) -> None:
    """Raises CannotMake for a target whose tables are two."""
    if not (artifact / WEIGHTS).is_file():
        raise CannotMake("the target has no tied table")
    cut(artifact / WEIGHTS, 0.5)
    rehash(artifact, WEIGHTS)


def manifest_faults() -> Iterator[Fault]:
    """`manifest.json`, which says what all other files must be."""
    contents = {
        "cut in half": lambda text: text[: len(text) // 2],
        "empty": lambda text: b"",
        "not UTF-8": lambda text: text.replace(b"xnnpack", b"\xff\xfe"),
        "a list": lambda text: b"[" + text + b"]",
        "100,000 brackets deep": lambda text: 100_000 * b"[",
        "without its files": lambda text: text.replace(b'"files"', b'"filed"'),
        "a key of 5 MB": lambda text: b'{"' + 5 * 2**20 * b"x" + b'": 1}',
    }
    for what, change in contents.items():
        yield damaged(
            f"{MANIFEST}: {what}",
            lambda a, change=change: write(a / MANIFEST, change((a / MANIFEST).read_bytes())),
            "damaged",
        )
    yield damaged(
        f"{MANIFEST}: of version 999",
        lambda a: edit_json(a / MANIFEST, schema_version=999),
        "this runner reads",
    )
    yield damaged(
        f"{MANIFEST}: constants of a larger model",
        lambda a: edit_part(a / MANIFEST, "constants", get_max_seq_len=2**40),
        "constants are not the manifest's",
    )
    yield damaged(
        f"{MANIFEST}: a file outside the artifact",
        lambda a: edit_part(a / MANIFEST, "files", **{"../../etc/passwd": _record()}),
        "is not a plain file name",
    )
    yield damaged(f"{MANIFEST}: missing", lambda a: (a / MANIFEST).unlink(), "not an artifact")
    yield damaged(
        f"{MANIFEST}: backend tpu",
        lambda a: edit_json(a / MANIFEST, backend="tpu"),
        "backend 'tpu'",
    )


def tokenizer_faults() -> Iterator[Fault]:
    """The tokenizer's files, changed after the export and before it was hashed."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        yield damaged(f"{name}: bit flipped", lambda a, name=name: flip(a / name, 0.5), HASH)
    yield damaged(
        "tokenizer.json: cut in half, its hash corrected",
        lambda a: (cut(a / "tokenizer.json", 0.5), rehash(a, "tokenizer.json")),
        "tokenizer cannot be read",
    )
    yield damaged("tokenizer_config.json: names code to run", _code, "names code", check=not_run)
    for what, template in {"raises": STOP, "divides by zero": "{{ 1 / 0 }}"}.items():
        yield damaged(
            f"chat_template.jinja: {what}",
            lambda a, template=template: _template(a, template),
            "the chat template cannot be rendered",
        )
    yield damaged(
        "added_tokens.json: not of this artifact",
        lambda a: write(a / "added_tokens.json", b"{}"),
        "not listed in manifest.json",
    )


def not_run(scene: Scene, output: str) -> str | None:
    """Whether a file's code was left alone."""
    return "code from a file was executed" if scene.marker.exists() else None


def _append(path: Path, more: bytes) -> None:
    write(path, path.read_bytes() + more)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link_to_zero(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _record() -> dict[str, Any]:
    return {"bytes": 1, "sha256": 64 * "0"}


def _template(artifact: Path, text: str) -> None:
    write(artifact / "chat_template.jinja", text.encode())
    rehash(artifact, "chat_template.jinja")


def _code(artifact: Path) -> None:
    """A tokenizer class of its own, which transformers would import if it were allowed to."""
    marker = artifact.parent / "executed"
    body = f"open({str(marker)!r}, 'w').close()\nclass Own: pass\n"
    write(artifact / "own.py", body.encode())
    edit_json(artifact / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]})
    rehash(artifact, "tokenizer_config.json")
