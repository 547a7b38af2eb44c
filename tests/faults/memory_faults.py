"""Too little memory on the host, at several points of a command's life."""

from collections.abc import Iterator
from pathlib import Path

from eagle_aot.artifact import MANIFEST, CacheBytes
from faults.fault import Fault
from faults.prompt_faults import answers_right
from faults.scene import QUESTION, Scene, edit_part

GIB = 2**30
STARVED = (0.25, 0.7, 1.0)
"""GiB of addresses, less than PyTorch's libraries take: they abort a process that lets them."""


def memory_faults() -> Iterator[Fault]:
    """All of them."""
    for limit in STARVED:
        yield Fault(
            name=f"memory: eagle-run in {limit:g} GiB of addresses",
            arrange=lambda scene: [scene.good, "--prompt", QUESTION, "--json"],
            address_space=int(limit * GIB),
            says="out of memory on the host",
        )
    yield Fault(
        name="memory: eagle-run in 2 GiB of addresses, which are enough",
        arrange=lambda scene: [scene.good, "--prompt", QUESTION, "--json"],
        address_space=2 * GIB,
        code=0,
        check=answers_right,
    )
    yield Fault(
        name="memory: caches of more sequences than the host has room for",
        arrange=lambda scene: [with_caches(scene, 64, 2**40), "--prompt", QUESTION],
        says="caches of 64 sequences 65536.0 GiB",
    )
    yield Fault(
        name="memory: eagle-export of a model that is too large",
        command="eagle-export",
        arrange=lambda scene: [
            *("--target-model", "gemma4-31b", "--load-format", "dummy", "--backend", "xnnpack"),
            *("--output-dir", scene.directory / "out"),
        ],
        address_space=6 * GIB,
        says="out of memory on the host",
    )


def with_caches(scene: Scene, sequences: int, each: int) -> Path:
    """An artifact that says it has caches of so many bytes for each of its sequences."""
    artifact = scene.artifact()
    told = CacheBytes(
        bytes=sequences * each,
        bytes_of_a_sequence=each,
        target_bytes_of_a_sequence=each,
        draft_bytes_of_a_sequence=0,
    )
    edit_part(artifact / MANIFEST, "decisions", caches=told.to_json())
    return artifact
