"""Artifacts that are published in repositories on the Hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_aot.artifact import MANIFEST, Manifest
from eagle_aot.artifact.locate import artifact_name, local_artifact
from eagle_aot.common.errors import ArtifactError, HubError
from eagle_aot.export.inspect_cli import main as inspect
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.cli import RunSpec
from eagle_aot.runtime_runner.serve.spec import ServeSpec
from support.files.artifact import write_artifact
from support.hub import Hub, HubRepository, files_of, hub_server, use_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server with an artifact, a repository that is none, and its files in `made`."""
    (tmp_path / "made").mkdir()
    write_artifact(tmp_path / "made")
    published = files_of(tmp_path / "made") | {"README.md": b"# card", ".gitattributes": b"*"}
    repositories = {
        "org/artifact": HubRepository(published),
        "org/model": HubRepository({"config.json": b"{}"}),
    }
    with hub_server(repositories) as server:
        use_hub(server, tmp_path, monkeypatch)
        monkeypatch.chdir(tmp_path)
        yield server


def test_published_artifact_is_downloaded_once_and_verified(hub: Hub, tmp_path: Path) -> None:
    directory = local_artifact(Path("org/artifact"))
    assert {path.name for path in directory.iterdir()} == {MANIFEST, "model.pte"}
    assert Manifest.read(directory) == Manifest.read(tmp_path / "made")
    Manifest.read(directory).verify(directory)
    assert artifact_name(directory) == "org/artifact"
    hub.requests.clear()
    assert local_artifact(Path("org/artifact")) == local_artifact(directory) == directory
    assert not hub.requests


def test_specs_have_the_directory_and_the_name(hub: Hub, tmp_path: Path) -> None:
    run, serve = RunSpec(artifact=Path("org/artifact")), ServeSpec(artifact=Path("org/artifact"))
    assert run.artifact == serve.artifact == local_artifact(Path("org/artifact"))
    assert (run.name, serve.model_names) == ("org/artifact", ("org/artifact",))
    assert RunSpec(artifact=tmp_path / "made").name == "made"
    with pytest.raises(ArtifactError, match="not a readable ExecuTorch program"):
        load_artifact("org/artifact")


def test_only_the_manifest_is_downloaded_to_be_shown(hub: Hub) -> None:
    result = CliRunner().invoke(inspect, ["artifact", "org/artifact@main"])
    assert result.exit_code == 0 and "made by" in result.output
    assert not any("model.pte" in request for request in hub.requests)


def test_what_is_no_artifact_is_refused(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"org/model: not an artifact .* --target-model org/mo"):
        local_artifact(Path("org/model"))
    with pytest.raises(HubError, match="org/none: neither a path here nor a repository on http"):
        load_artifact("org/none")
    for path in (Path("made"), Path("none"), tmp_path / "none"):
        assert local_artifact(path) == path


@pytest.mark.parametrize("outside", ["secret", "models--a--b/secret", "models--a--b/blobs2/x"])
def test_links_in_the_cache_lead_to_its_content_alone(tmp_path: Path, outside: str) -> None:
    directory = tmp_path / "models--a--b" / "snapshots" / "0"
    directory.mkdir(parents=True)
    manifest = write_artifact(directory)
    for blobs in (tmp_path / "blobs" / "ab", directory.parents[1] / "blobs"):
        blobs.mkdir(parents=True)
        (directory / "model.pte").symlink_to((directory / "model.pte").rename(blobs / "1"))
        manifest.verify(directory)
        (directory / "model.pte").unlink()
        (blobs / "1").rename(directory / "model.pte")
    hidden = tmp_path / outside
    hidden.parent.mkdir(exist_ok=True)
    (directory / "model.pte").symlink_to((directory / "model.pte").rename(hidden))
    with pytest.raises(ArtifactError, match="a link that leads out of the artifact"):
        manifest.verify(directory)
