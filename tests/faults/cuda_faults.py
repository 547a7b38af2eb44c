"""Damaged artifacts for CUDA, whose weights lie in a file of their own.

Their program and weights are the small ones that the readers' tests use, which ExecuTorch wrote.
Hashes are compared before a GPU is asked for; what is read after that needs one.
"""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from eagle_aot.artifact import MANIFEST, PROGRAM, WEIGHTS
from faults.artifact_faults import HASH, Damage, changed_file, damaged
from faults.fault import Arguments, CannotMake, Fault
from faults.scene import SMALL, Scene, blank, cut, edit_json, edit_part, flip, rehash, write

SIZE_PLACE = 24  # in a .ptd file: the length of its flatbuffer, u64
KEY = b"target.packed"  # in a name in both files


def cuda_faults() -> Iterator[Fault]:
    """All of them."""
    yield from changed_file(WEIGHTS, cuda_artifact)
    yield from verify_faults()
    yield from foreign_machines()
    yield from reader_faults()


def cuda_artifact(scene: Scene) -> Path:
    """Compiled for the GPU of this machine, its manifest says, or for one where there is none."""
    artifact = scene.artifact()
    for name in (PROGRAM, WEIGHTS):
        write(artifact / name, (SMALL / "cuda" / name).read_bytes())
    device = {
        "name": "a GPU",
        "compute_capability": capability() or "9.0",
        "multiprocessors": 132,
        "cuda": "13.0",
    }
    edit_json(artifact / MANIFEST, backend="cuda", device=device)
    edit_part(artifact / MANIFEST, "versions", torch=torch.__version__)
    rehash(artifact, PROGRAM, WEIGHTS)
    return artifact


def capability() -> str | None:
    """That of this machine's GPU, None where there is none."""
    if not torch.cuda.is_available():
        return None
    return ".".join(map(str, torch.cuda.get_device_capability()))


def verify_faults() -> Iterator[Fault]:
    """The same files before `eagle-check --verify`, which says of every file how it is."""
    changes: dict[str, tuple[Callable[[Path], object], str]] = {
        "bit flipped": (lambda path: flip(path, 0.5), HASH),
        "cut in half": (lambda path: cut(path, 0.5), "manifest.json says"),
        "missing": (Path.unlink, "missing"),
    }
    for name in (PROGRAM, WEIGHTS):
        for what, (change, says) in changes.items():
            yield verifying(name, what, change, says)


def verifying(name: str, what: str, change: Callable[[Path], object], says: str) -> Fault:
    """One file is wrong, and no other is called so."""

    def arrange(scene: Scene) -> Arguments:
        artifact = cuda_artifact(scene)
        change(artifact / name)
        return [artifact, "--verify", "--json"]

    def check(scene: Scene, output: str) -> str | None:
        found = json.loads(output)
        wrong = [one for one, status in found["status"].items() if status != "ok"]
        right = wrong == [name] and not found["intact"]
        return None if right else f"intact {found['intact']}, wrong are {wrong}"

    return Fault(
        name=f"--verify: {name} {what}",
        command="eagle-check",
        arrange=arrange,
        says=says,
        check=check,
    )


def foreign_machines() -> Iterator[Fault]:
    """Artifacts without any damage, on a machine that cannot run them."""
    yield damaged("cuda: no GPU", lambda a: without_gpu(), "needs an NVIDIA GPU", cuda_artifact)
    yield damaged(
        "cuda: compiled for another GPU",
        on_gpu(lambda a: edit_part(a / MANIFEST, "device", compute_capability="1.0")),
        "compiled for compute capability 1.0",
        cuda_artifact,
    )
    yield damaged(
        "cuda: compiled with another torch",
        on_gpu(lambda a: edit_part(a / MANIFEST, "versions", torch="1.0.0")),
        "compiled with torch 1.0",
        cuda_artifact,
    )


def reader_faults() -> Iterator[Fault]:
    """Weights of which the manifest holds the hash all the same."""
    changes: dict[str, tuple[Callable[[Path], object], str]] = {
        "cut in half": (lambda path: cut(path, 0.5), "damaged (points at byte"),
        "first bytes gone": (blank, "not a weight file"),
        "a flatbuffer of 2^60 bytes": (_claim, "damaged (points at byte"),
        "of another program": (_rename, "target.packed"),
    }
    for what, (change, says) in changes.items():
        yield damaged(
            f"{WEIGHTS}: {what}, its hash corrected",
            on_gpu(lambda a, change=change: (change(a / WEIGHTS), rehash(a, WEIGHTS))),
            says,
            cuda_artifact,
        )


def on_gpu(damage: Damage) -> Damage:
    """The same damage; it raises CannotMake where no GPU lets a command come so far."""

    def checked(artifact: Path) -> object:
        if capability() is None:
            raise CannotMake("needs an NVIDIA GPU")
        return damage(artifact)

    return checked


def without_gpu() -> None:
    """Raises CannotMake where there is one."""
    if capability() is not None:
        raise CannotMake("there is a GPU here")


def _claim(path: Path) -> None:
    content = bytearray(path.read_bytes())
    struct.pack_into("<Q", content, SIZE_PLACE, 2**60)
    write(path, bytes(content))


def _rename(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(KEY) == 1, content.count(KEY)
    write(path, content.replace(KEY, KEY[::-1]))
