"""Damaged, contradictory and hostile checkpoints, which `eagle-export` must refuse."""

import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from faults.artifact_faults import not_run
from faults.fault import Arguments, Fault
from faults.scene import Scene, cut, edit_json, write

WEIGHTS = "model.safetensors"
ABSURD_MEMORY = 12 << 30  # bytes of addresses: torch's libraries take 5 of them


def checkpoint_faults() -> Iterator[Fault]:
    """All of them."""
    for part in ("target", "head"):
        yield from file_faults(part)
        yield from value_faults(part)
    yield from config_faults()
    yield from head_faults()
    yield from pickle_faults()


def exporting(part: str, name: str, damage: Callable[[Path], object], says: str) -> Fault:
    """The shipped pair with something done to its target or its head."""

    def arrange(scene: Scene) -> Arguments:
        pair = {"target": scene.target(), "head": scene.head()}
        damage(pair[part])
        return [
            *("--target-model", "gemma4-tiny", "--backend", "xnnpack"),
            *("--target-dir", pair["target"], "--draft-dir", pair["head"]),
            *("--output-dir", scene.directory / "out"),
        ]

    return Fault(
        name=f"{part}: {name}",
        command="eagle-export",
        arrange=arrange,
        says=says,
        address_space=ABSURD_MEMORY,
        check=not_run,
    )


def file_faults(part: str) -> Iterator[Fault]:
    """Files that are no longer what they were."""
    unreadable = "cannot be read as safetensors"
    yield exporting(part, f"{WEIGHTS} cut in half", lambda d: cut(d / WEIGHTS, 0.5), unreadable)
    yield exporting(part, f"{WEIGHTS} empty", lambda d: cut(d / WEIGHTS, 0), unreadable)
    yield exporting(part, f"{WEIGHTS} missing", lambda d: (d / WEIGHTS).unlink(), "no *.safet")
    yield exporting(
        part, f"{WEIGHTS}: a header of 2^60 bytes", lambda d: _header_length(d, 2**60), unreadable
    )
    yield exporting(part, f"{WEIGHTS}: a tensor of 2^60 rows", _absurd_tensor, unreadable)
    yield exporting(
        part, f"{WEIGHTS}: bit flipped in its header", lambda d: _flip_header(d), "model"
    )
    yield exporting(part, "config.json cut in half", lambda d: cut(d / "config.json", 0.5), "JSON")
    yield exporting(part, "config.json empty", lambda d: cut(d / "config.json", 0), "JSON")
    yield exporting(
        part, "config.json a list", lambda d: write(d / "config.json", b"[]"), "a JSON object"
    )
    yield exporting(
        part, "config.json not UTF-8", lambda d: write(d / "config.json", b"\xff\xfe"), "JSON"
    )


def value_faults(part: str) -> Iterator[Fault]:
    """Numbers that no model computes with."""
    places = {
        "target": ("embed_tokens.weight", "input_layernorm.weight", "weight_scale"),
        "head": ("fc.weight", "norm.weight", "lm_head.weight"),
    }
    for suffix in places[part]:
        for value in ("nan", "inf"):
            yield exporting(
                part,
                f"{value} in a {suffix}",
                lambda d, suffix=suffix, value=value: _spoil(d, suffix, float(value)),
                "NaN or infinite values",
            )
    yield exporting(part, "a tensor is missing", lambda d: _rename(d, "norm.weight", None), "norm.")
    yield exporting(part, "a tensor nobody knows", lambda d: _rename(d, "", "odd"), "unknown tens")


def config_faults() -> Iterator[Fault]:
    """A target's config.json and what lies beside it."""
    absurd = {
        "hidden_size": 2**40,
        "num_hidden_layers": 10**9,
        "head_dim": 2**63,
        "num_attention_heads": 2**40,
        "vocab_size": 2**40,
        "sliding_window": 2**40,
    }
    for key, value in absurd.items():
        yield exporting(
            "target",
            f"{key} {value}",
            lambda d, key=key, value=value: edit_json(d / "config.json", **{key: value}),
            "expected at most" if key != "num_hidden_layers" else "at most 1024",
        )
    yield exporting(
        "target",
        "twice the layers",
        lambda d: edit_json(d / "config.json", **_twice_the_layers(d)),
        "is not one shape for all full layers",
    )
    for eos in (10**9, -1, "<eos>"):
        yield exporting(
            "target",
            f"eos_token_id {eos!r}",
            lambda d, eos=eos: edit_json(d / "generation_config.json", eos_token_id=eos),
            "eos_token_id",
        )
    yield exporting("target", "no tokenizer", lambda d: (d / "tokenizer.json").unlink(), "no token")
    yield exporting(
        "target", "tokenizer.json cut in half", lambda d: cut(d / "tokenizer.json", 0.5), "token"
    )
    yield exporting(
        "target", "a shard outside the directory", _shard_outside, "shard '../../etc/passwd' is mis"
    )


def head_faults() -> Iterator[Fault]:
    """A draft head that cannot belong to its target."""
    yield exporting("head", "d2t beyond the vocabulary", lambda d: _shift_ids(d, 10**6), "d2t maps")
    yield exporting("head", "d2t below zero", lambda d: _shift_ids(d, -(10**6)), "d2t maps")
    yield exporting(
        "head",
        "vocab_size 2^40",
        lambda d: edit_json(d / "config.json", vocab_size=2**40),
        "expected at most",
    )
    yield exporting(
        "head",
        "vocab_size of another target",
        lambda d: edit_json(d / "config.json", vocab_size=2**20),
        "embed_tokens",
    )
    yield exporting("head", "its directory is a file", _file_for_directory, "no such directory")


def pickle_faults() -> Iterator[Fault]:
    """`pytorch_model.bin`, which is loaded with weights only."""
    yield exporting("head", "a pickle that runs code", _hostile_pickle, "plain weights")
    yield exporting("head", "a pickle cut in half", lambda d: _pickled(d, 0.5), "plain weights")
    yield exporting("head", "a pickle of a list", lambda d: _save(d, [1, 2]), "a table of tensors")
    yield exporting(
        "head", "a pickle that is noise", lambda d: _only(d, bytes(range(256))), "plain weights"
    )


class Hostile:
    """Pickled, it asks whoever unpickles it to write a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def _hostile_pickle(directory: Path) -> None:
    _only(directory, pickle.dumps({"fc.weight": Hostile(directory.parent / "executed")}, 2))


def _only(directory: Path, content: bytes) -> None:
    (directory / WEIGHTS).unlink()
    write(directory / "pytorch_model.bin", content)


def _save(directory: Path, value: Any) -> None:
    (directory / WEIGHTS).unlink()
    torch.save(value, directory / "pytorch_model.bin")


def _pickled(directory: Path, share: float) -> None:
    _save(directory, load_file(directory / WEIGHTS))
    cut(directory / "pytorch_model.bin", share)


def _rewrite(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    (directory / WEIGHTS).unlink()
    save_file(tensors, directory / WEIGHTS)


def _spoil(directory: Path, suffix: str, value: float) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        name = next(name for name in tensors if name.endswith(suffix))
        tensors[name].view(-1)[-1] = value

    _rewrite(directory, change)


def _rename(directory: Path, suffix: str, new: str | None) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        if new is not None:
            tensors[new] = torch.zeros(1)
        else:
            del tensors[next(name for name in tensors if name.endswith(suffix))]

    _rewrite(directory, change)


def _shift_ids(directory: Path, by: int) -> None:
    _rewrite(directory, lambda tensors: tensors["d2t"].add_(by))


def _header_length(directory: Path, length: int) -> None:
    content = (directory / WEIGHTS).read_bytes()
    write(directory / WEIGHTS, struct.pack("<Q", length) + content[8:])


def _flip_header(directory: Path) -> None:
    content = bytearray((directory / WEIGHTS).read_bytes())
    content[12] ^= 0x10
    write(directory / WEIGHTS, bytes(content))


def _absurd_tensor(directory: Path) -> None:
    content = (directory / WEIGHTS).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    entry = next(value for name, value in header.items() if name != "__metadata__")
    entry["shape"][0] = 2**60
    text = json.dumps(header).encode()
    write(directory / WEIGHTS, struct.pack("<Q", len(text)) + text + content[8 + length :])


def _twice_the_layers(directory: Path) -> dict[str, Any]:
    stored = json.loads((directory / "config.json").read_bytes())
    text = stored.get("text_config", stored)
    return {
        "num_hidden_layers": 2 * text["num_hidden_layers"],
        "layer_types": 2 * text["layer_types"],
    }


def _shard_outside(directory: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "../../etc/passwd"}}
    write(directory / "model.safetensors.index.json", json.dumps(index).encode())


def _file_for_directory(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    directory.write_bytes(b"")
