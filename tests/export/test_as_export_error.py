"""Failures of compilers and of the pipeline are reported in one line."""

from pathlib import Path

import pytest
import torch

from eagle_aot.common.errors import ExportError, SettingError
from eagle_aot.export import pipeline, resolve, resolve_checkpoints, run_check
from eagle_aot.export.as_export_error import as_export_error
from eagle_aot.export.drafters.eagle3 import kind as eagle3
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.loading import load
from eagle_aot.export.lowering.backend import DTYPES
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support import pairs
from support.pairs import dummy, head_of

REPORT = """Failed to run a block: An exception occurred in a subprocess:

Name=kernel
Traceback (most recent call last):
  File "kernel.py", line 9, in <module>
SyntaxError: unterminated string literal
"""

LINKER = """CppCompileError: C++ compile error

Command:
g++ a.o b.o -o kernels.so

Output:
ld: warning: a.o: missing .note.GNU-stack section implies executable stack
ld: b.o:(.rodata+0x0): multiple definition of `__kernel_start'; a.o: first defined here
collect2: error: ld returned 1 exit status
"""

FULL_DISK = """C++ compile error

Command:
g++ a.o b.o -o kernels.so

Output:
/usr/bin/ld: final link failed: No space left on device
collect2: error: ld returned 1 exit status
"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("no room\nat all", "lowering failed: no room"),
        ("", "lowering failed: RuntimeError"),
        ("what follows:", "lowering failed: what follows:"),
        (
            REPORT,
            "lowering failed: Failed to run a block: An exception occurred in a subprocess: "
            "SyntaxError: unterminated string literal",
        ),
        (
            LINKER,
            "lowering failed: CppCompileError: C++ compile error: ld: b.o:(.rodata+0x0): multiple "
            "definition of `__kernel_start'; a.o: first defined here",
        ),
        (
            FULL_DISK,
            "lowering failed: C++ compile error: /usr/bin/ld: final link failed: No space left on "
            "device",
        ),
        ("C++ compile error\n\nOutput:\n", "lowering failed: C++ compile error: no output"),
        ("2 kernels:\n  - a\n  - b\nPlease add them", "lowering failed: 2 kernels: - a - b"),
    ],
)
def test_the_line_says_what_was_wrong(message: str, line: str) -> None:
    with pytest.raises(ExportError) as caught, as_export_error("lowering failed"):
        raise RuntimeError(message)
    assert str(caught.value) == line


def test_our_own_are_left_as_they_are() -> None:
    with pytest.raises(SettingError, match=r"^too long$"), as_export_error("lowering failed"):
        raise SettingError("too long")


def test_a_dummy_that_a_device_drew_lies_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the device is the host itself, so that the numbers must be the host's, too."""
    monkeypatch.setattr(load, "CUDA", "cpu")
    monkeypatch.setitem(DTYPES, "cpu", torch.bfloat16)
    checkpoints, caches = resolve_checkpoints(dummy()), CacheSpec(64, torch.bfloat16)
    pair = load.load_by_gpu(checkpoints, torch.bfloat16, caches).pair
    found, expected = (
        pair.state_dict(),
        load.load_pair(checkpoints, torch.bfloat16, caches).pair.state_dict(),
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert head_of(pair).embed_tokens.weight is pair.target.embed_weight


def out_of_memory(*arguments: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.62 GiB.\nand more")


def test_a_gpu_too_small_for_a_dummy_is_an_export_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eagle3, "new_draft", out_of_memory)
    with pytest.raises(ExportError, match=r"^loading failed: out of memory on the GPU, 2\.62 G"):
        pairs.load(dummy(), torch.bfloat16)


def test_a_gpu_too_small_to_pack_is_an_export_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "pack_int4", out_of_memory)
    with pytest.raises(ExportError, match=r"^packing failed: out of memory on the GPU, 2\.62 G"):
        run_check(dummy(backend="cuda", max_seq_len=128))


@pytest.mark.parametrize(("backend", "jobs"), [("cuda", 1), ("xnnpack", 4)])
def test_one_job_and_xnnpack_start_no_process(tmp_path: Path, backend: str, jobs: int) -> None:
    resolved = resolve(
        # Any machine can trace for CUDA
        dummy(dummy_layers=1, drafter="ngram", backend=backend, jobs=jobs, check_only=True)
    )
    pair = load.load_pair(resolved.checkpoints, torch.bfloat16, CacheSpec(64, torch.bfloat16)).pair
    before = {name: tensor.data_ptr() for name, tensor in pair.named_parameters()}
    lengths = method_lengths(128, 256, 64)
    names, directory = ["prefill", "target_verify"], tmp_path / "new"
    with pipeline.in_parallel(names, pair, lengths, directory, resolved) as take_compiled:
        assert take_compiled is None and not list(tmp_path.iterdir())
    assert {name: tensor.data_ptr() for name, tensor in pair.named_parameters()} == before
