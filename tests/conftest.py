"""Real artifacts, exported once per test run beside the faster tests."""

import os
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from huggingface_hub import constants
from torch.fx import config

from eagle_aot.runtime_runner import load_artifact
from support.exports import CUDA, OF_PAIRS, SHIPPED, Exports
from support.hub import Hub, HubRepository, files_of, hub_environment, hub_server

if TYPE_CHECKING:
    from support.server import Server

torch.set_num_threads(1)
if hasattr(config, "do_not_emit_stack_traces"):  # torch 2.11 has it not
    config.do_not_emit_stack_traces = True  # a tenth of tracing below pytest's deep stack
CUDA_ARTIFACT = "CUDA_ARTIFACT"
FROM_HUB = "qwen3"
"""The export whose checkpoints are in repositories on the Hub."""


ARTIFACT = "_artifact"
"""How the names of fixtures that are exports end."""


RUNNERS = ["tiny", "int4_head", "qwen3_runner", "batch_runner",
           "assistant_runner", "dflash2_runner", "dspark_runner", "experts_runner",
           "experts_int8_runner", "experts_int4_runner", "hybrid_runner"]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Keep tests and their processes from the real Hub: those of the Hub have a server here."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run tests that are marked slow, too")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests of artifacts, so that they can run in a process beside all others."""
    if needs_artifact(item):
        item.add_marker(pytest.mark.artifact)


@pytest.hookimpl(trylast=True)  # after `-m` and `-k`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out unless `--slow` is given. Tests of artifacts come last: the exports take
    minutes, on the second core."""
    if not config.getoption("--slow"):
        config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    items.sort(key=needs_artifact)


def needs_artifact(item: pytest.Item) -> bool:
    """Return whether any of a test's fixtures is an export."""
    return any(name.endswith(ARTIFACT) for name in fixtures(item))


def fixtures(item: pytest.Item) -> list[str]:
    """Return the names of all fixtures that a test needs, with the artifacts of runners that its
    parameters name."""
    callspec = getattr(item, "callspec", None)
    runners = [v for v in (callspec.params.values() if callspec else ()) if v in RUNNERS]
    artifacts = [runner.removesuffix("_runner") + ARTIFACT for runner in runners]
    return [*getattr(item, "fixturenames", ()), *artifacts]


def written_pair(module: str, **options: str) -> Any:
    """Make the fixture of a pair on disk, which the only `write_` function of a module writes."""

    @pytest.fixture(scope="session")
    def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
        written = import_module(f"support.{module}")  # slow, and not needed in child processes
        (name,) = (name for name in vars(written) if re.fullmatch(r"write_\w*pair", name))
        directories: tuple[Path, Path] = getattr(written, name)(
            tmp_path_factory.mktemp("pair"), **options
        )
        return directories

    return pair


random_pair = written_pair("random_pair")
qwen3_pair = written_pair("random_pair", family="qwen3")
hybrid_pair = written_pair("hybrid_pair")
assistant_pair = written_pair("heads.assistants")
image_pair = written_pair("image_pair")
experts_pair = written_pair("experts_pair", case="moe/qwen3_moe")
dflash2_pair = written_pair("heads.dflash2")
dspark_pair = written_pair("heads.dspark")


@pytest.fixture(scope="session")
def pair_hub(
    qwen3_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Hub, Path]]:
    """A server with the pair in repositories, and the directory of the cache of its clients."""
    target, head = (HubRepository(files_of(directory)) for directory in qwen3_pair)
    with hub_server({"org/qwen3": target, "org/head": head}) as hub:
        yield hub, tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="session", autouse=True)
def exports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exports]:
    """The exports that the selected tests need, begun in the order in which they do."""
    needed = dict.fromkeys(name for item in request.session.items for name in fixtures(item))
    names = [name.removesuffix(ARTIFACT) for name in needed if name.endswith(ARTIFACT)]
    requested = {name: options for name in names if (options := options_of(name, request))}
    environments = {}
    if FROM_HUB in requested:
        environments[FROM_HUB] = hub_environment(*request.getfixturevalue("pair_hub"))
    begun = Exports(tmp_path_factory.mktemp("artifacts"), requested, environments)
    yield begun
    begun.stop()


def options_of(name: str, request: pytest.FixtureRequest) -> Sequence[str]:
    """The options of an export; none where there is nothing to export."""
    if name == "cuda":
        return CUDA if torch.cuda.is_available() and CUDA_ARTIFACT not in os.environ else ()
    if name in SHIPPED:
        return *SHIPPED[name], "--backend", "xnnpack"
    if name not in OF_PAIRS:  # one that a module makes for itself
        return ()
    pair, target, *options = OF_PAIRS[name]
    if name == FROM_HUB:
        names = "--target-model", "org/qwen3", "--draft-model", "org/head@main"
        return "--backend", "xnnpack", *options, *names
    target_dir, head_dir = request.getfixturevalue(pair)
    places = "--target-dir", str(target_dir), "--draft-dir", str(head_dir)
    return "--target-model", target, "--backend", "xnnpack", *options, *places


@pytest.fixture(scope="session")
def one_thread() -> None:
    """For ExecuTorch too: its threads wait for one another in loops, and others need the cores."""
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool  # slow

    _unsafe_reset_threadpool(1)


def exported(name: str) -> Any:
    """Make the fixture of an export for XNNPACK."""

    @pytest.fixture(scope="session")
    def artifact(exports: Exports, one_thread: None) -> Path:
        return exports.wait(name)

    return artifact


tiny_artifact = exported("tiny")
"""The shipped pair: trained target, trained head, with caches for four sequences."""
int4_head_artifact = exported("int4_head")
"""The shipped pair, its head in INT4."""
qwen3_artifact = exported("qwen3")
"""A random target of another family, found by its config, with a random head, in INT8."""
batch_artifact = exported("batch")
"""A random target with a random head and a sliding window of 16, in INT4, with caches for four
sequences."""
hybrid_artifact = exported("hybrid")
"""A trained Qwen3.5 of three layers with its MTP layer, and caches for four sequences."""
assistant_artifact = exported("assistant")
"""Two layers of a Gemma 4 and their assistant, with caches for two sequences."""
image_artifact = exported("image")
"""A random Gemma 4 that reads images, with caches for two sequences."""
dflash2_artifact = exported("dflash2")
"""Six layers of a Qwen3 with a DFlash2 head, and caches for two sequences."""
dspark_artifact = exported("dspark")
"""The same with a DSpark head, and caches for four sequences."""

experts_artifact = exported("experts")
"""Three layers of a Qwen3 with experts, a random head, and caches for four sequences."""
experts_int8_artifact, experts_int4_artifact = exported("experts_int8"), exported("experts_int4")
"""The same in INT8 and INT4, with caches for one sequence."""


@pytest.fixture(scope="session")
def cuda_artifact(exports: Exports) -> Path:
    """The shipped pair for the GPU of this machine, with a context of 4608 tokens.

    Exported, unless the environment names one that was exported before.
    """
    if CUDA_ARTIFACT in os.environ:
        return Path(os.environ[CUDA_ARTIFACT])
    if "cuda" not in exports:
        pytest.skip("needs an NVIDIA GPU")
    return exports.wait("cuda")


session = pytest.fixture(scope="session")
tiny = session(lambda tiny_artifact: load_artifact(tiny_artifact))
int4_head = session(lambda int4_head_artifact: load_artifact(int4_head_artifact))
qwen3_runner = session(lambda qwen3_artifact: load_artifact(qwen3_artifact))
hybrid_runner = session(lambda hybrid_artifact: load_artifact(hybrid_artifact))
assistant_runner = session(lambda assistant_artifact: load_artifact(assistant_artifact))
image_runner = session(lambda image_artifact: load_artifact(image_artifact))
dflash2_runner = session(lambda dflash2_artifact: load_artifact(dflash2_artifact))
dspark_runner = session(lambda dspark_artifact: load_artifact(dspark_artifact))
experts_runner = session(lambda experts_artifact: load_artifact(experts_artifact))
experts_int8_runner = session(lambda experts_int8_artifact: load_artifact(experts_int8_artifact))
experts_int4_runner = session(lambda experts_int4_artifact: load_artifact(experts_int4_artifact))
batch_runner = session(lambda batch_artifact: load_artifact(batch_artifact))


@pytest.fixture(scope="session")
def server(tiny_artifact: Path) -> "Iterator[Server]":
    """`eagle-serve` of a model that is called tiny, for tests that leave it as it was."""
    from support.server import served  # slow, and not needed in child processes

    options = "--served-model-name", "tiny", "--max-waiting", "30", "--tool-call-parser", "hermes"
    with served(tiny_artifact, *options) as found:
        yield found
