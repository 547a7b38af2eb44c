"""Which backend is chosen on which machine, and what is missing said before any work."""

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch.utils import cpp_extension

from eagle_aot.artifact import Device
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export.lowering.backend import CACHE_DIR, choose_backend, untested_gpu_warning
from eagle_aot.export.spec import Backend
from eagle_aot.triton_kernels.device import H100_MULTIPROCESSORS, multiprocessors


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU and all that compiling for it takes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", "/cuda")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: name)


@pytest.mark.usefixtures("gpu")
def test_auto_uses_a_gpu() -> None:
    assert [choose_backend(name) for name in ("auto", "cuda", "xnnpack")] == [
        "cuda",
        "cuda",
        "xnnpack",
    ]


def test_auto_without_a_gpu_is_xnnpack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_backend("auto") == choose_backend("xnnpack") == "xnnpack"
    with pytest.raises(UnsupportedError, match="this machine shows none"):
        choose_backend("cuda")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("requested", ["auto", "cuda"])
@pytest.mark.parametrize(("module", "name", "value", "message"), [
    (importlib.util, "find_spec", lambda name: None, "triton is not installed"),
    (cpp_extension, "CUDA_HOME", None, r"no CUDA toolkit \(set CUDA_HOME\)"),
    (shutil, "which", lambda name: None, r"no C\+\+ compiler \(g\+\+\)"),
])  # fmt: skip
def test_a_missing_compiler_is_named(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    value: object,
    message: str,
    requested: Backend,
) -> None:
    monkeypatch.setattr(module, name, value)
    with pytest.raises(UnsupportedError, match=f"{message}: install it, or use --backend xnnpack"):
        choose_backend(requested)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("requested", ["auto", "cuda"])
@pytest.mark.parametrize("capability", [(7, 5), (8, 7), (12, 1)])
def test_unsupported_compute_capabilities_are_refused(
    monkeypatch: pytest.MonkeyPatch, requested: Backend, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    refused = re.escape("{}.{}".format(*capability))
    with pytest.raises(UnsupportedError, match=rf"8\.0, .*, 12\.0, not for {refused}: use"):
        choose_backend(requested)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_gpus_without_a_run_of_the_kernels_are_reported(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert choose_backend("auto") == "cuda" and untested_gpu_warning("xnnpack") == ""
    expected = "compute capability {}.{}: the kernels compile for it".format(*capability)
    assert untested_gpu_warning("cuda").startswith(expected) == (capability != (9, 0))


class Gpu:
    multi_processor_count = 78


@pytest.mark.usefixtures("gpu")
def test_products_are_split_for_the_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", Gpu)
    assert multiprocessors() == 78


def test_products_are_split_for_an_h100_where_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert multiprocessors() == H100_MULTIPROCESSORS == 132


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton to import")
def test_a_program_records_the_gpu_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle_aot.export.lowering.cuda import device_record

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", Gpu)
    assert device_record() == Device(
        name="a GPU", compute_capability="8.9", multiprocessors=78, cuda=torch.version.cuda or ""
    )


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton to import")
class TestWorkspace:
    @pytest.mark.parametrize("named", [None, default_cache_dir()])
    def test_an_export_uses_a_separate_inductor_cache(
        self, named: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Also where torch has named its default directory, as it does when it is imported."""
        from eagle_aot.export.lowering.cuda import workspace

        for name in (CACHE_DIR, "TRITON_CACHE_DIR"):
            monkeypatch.delenv(name, raising=False)
        if named:
            monkeypatch.setenv(CACHE_DIR, named)
        with workspace(tmp_path / "one"):
            assert os.environ[CACHE_DIR] == str(tmp_path / "one")
            (tmp_path / "one" / "kernel.so").touch()
            os.environ["TRITON_CACHE_DIR"] = str(tmp_path / "one" / "triton")  # as Inductor does
        assert os.environ.get(CACHE_DIR) == named and "TRITON_CACHE_DIR" not in os.environ
        with pytest.raises(KeyError), workspace(tmp_path / "two"):
            raise KeyError("a failure while lowering")
        assert os.environ.get(CACHE_DIR) == named and not list(tmp_path.iterdir())

    def test_a_cache_that_the_user_names_is_kept(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from eagle_aot.export.lowering.cuda import workspace

        monkeypatch.setenv(CACHE_DIR, str(tmp_path))
        with workspace(tmp_path / "unused"):
            assert os.environ[CACHE_DIR] == str(tmp_path)
        assert os.environ[CACHE_DIR] == str(tmp_path) and not list(tmp_path.iterdir())

    def test_tuning_is_quiet_and_stderr_comes_back(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from eagle_aot.export.lowering.cuda import quiet_tuning

        with quiet_tuning():
            print("Autotune Choices Stats", file=sys.stderr)
        print("after", file=sys.stderr)
        assert capsys.readouterr().err == "after\n"
