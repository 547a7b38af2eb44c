"""Small files are read with a bound, and devices not at all."""

import io
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.files import STDIN, read_small
from eagle_aot.common.prompts import read_prompts
from eagle_aot.runtime_runner.decode.shape import read_paths
from eagle_aot.runtime_runner.serve.spec import ServeSpec

MIB = 1 << 20


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MIB))
    assert read_small(path, MIB) == bytes(MIB)
    path.write_bytes(bytes(MIB + 1))
    with pytest.raises(OSError, match="longer than 1 MiB"):
        read_small(path, MIB)


def test_a_pipe_is_read_up_to_its_bound(tmp_path: Path) -> None:
    """As the shell makes them for `<(command)`."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for content, fits in ((b"key\n", True), (bytes(MIB + 1), False)):
        writer = threading.Thread(target=lambda c=content: swallow(lambda: path.write_bytes(c)))
        writer.start()
        if fits:
            assert read_small(path, MIB) == content
        else:
            with pytest.raises(OSError, match="longer than 1 MiB"):
                read_small(path, MIB)
        writer.join()


def swallow(write: Callable[[], object]) -> None:
    with suppress(BrokenPipeError):
        write()


def test_standard_input_has_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bytes(2 * MIB))))
    with pytest.raises(OSError, match="longer than 1 MiB"):
        read_small(STDIN, MIB)


@pytest.mark.parametrize(("read", "error"), [
    (lambda path: ServeSpec(artifact=path, api_key_file=path).read_keys(), SettingError),
    (lambda path: read_prompts(None, path, None), PromptError),
    (lambda path: read_prompts(None, None, path), PromptError),
    (read_paths, SettingError),
])  # fmt: skip
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_devices_are_no_files(
    read: Callable[[Path], object], error: type[Exception], device: str
) -> None:
    with pytest.raises(error, match=f"^[-a-z ]*{device}: .*neither a file nor a pipe"):
        read(Path(device))
