"""`eagle-export --push-to`: publish an artifact in a repository on the Hugging Face Hub."""

from collections.abc import Iterator
from pathlib import Path

from eagle_aot import __version__
from eagle_aot.artifact import ARTIFACT_FILES, MANIFEST, CacheBytes, CheckpointIdentity, Manifest
from eagle_aot.common.errors import HubError, SettingError
from eagle_aot.common.hub import Repository, hub_errors
from eagle_aot.common.progress import Progress
from eagle_aot.common.text import gigabytes, printable

CARD = "README.md"
LICENCE_KEYS = "license", "license_name", "license_link"
"""Keys of a model card that an artifact takes from its target's card."""


def check_push(name: str) -> Repository:
    """Return the repository to publish in. Raises SettingError for a wrong name, and HubError if
    the user is not logged in or may not write there."""
    from huggingface_hub import HfApi

    repository = Repository.parse(name)
    if repository is None or repository != Repository(repository.id):
        raise SettingError(f"--push-to {name}: expected a repository, ORG/NAME")
    with hub_errors(repository):
        user = HfApi().whoami()
    owners = [user["name"], *(organisation["name"] for organisation in user.get("orgs", ()))]
    if (owner := repository.id.split("/")[0]) not in owners:
        raise HubError(
            f"{repository}: {user['name']} may not write to {owner}: name one of "
            f"{', '.join(owners)}, or log in with `hf auth login`"
        )
    return repository


def push(directory: Path, repository: Repository) -> str:
    """Upload an artifact and its model card in one commit, and return the repository's address.

    A repository that does not exist is created as `hf upload` does: public, unless the default of
    the organization is private. Files of an earlier artifact are replaced. Raises HubError.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    manifest = Manifest.read(directory)
    files = (*manifest.files, MANIFEST)
    with hub_errors(repository), Progress().stage("upload"):
        api = HfApi()
        url = api.create_repo(repository.id, exist_ok=True)
        stale = {*api.list_repo_files(repository.id)} & {*ARTIFACT_FILES} - {*files}
        card = "\n".join(model_card(manifest, repository, licence_of(manifest.target))) + "\n"
        api.create_commit(
            repository.id,
            [
                CommitOperationAdd(CARD, card.encode()),
                *(CommitOperationAdd(name, str(directory / name)) for name in files),
                *(CommitOperationDelete(name) for name in sorted(stale)),
            ],
            commit_message=f"Upload an artifact of eagle-aot {manifest.eagle_aot_version}",
        )
        return str(url)


def licence_of(target: CheckpointIdentity) -> dict[str, str]:
    """Return the licence in the model card of the target's repository; empty if it is unknown."""
    from huggingface_hub import HfApi

    repository = Repository.parse(target.directory or "")
    if target.commit is None or repository is None:
        return {}
    try:
        with hub_errors(repository):
            card = HfApi().model_info(repository.id, revision=target.commit).card_data
    except HubError:
        return {}
    values = {} if card is None else card.to_dict()
    return {key: str(values[key]) for key in LICENCE_KEYS if values.get(key)}


def model_card(
    manifest: Manifest, repository: Repository, licence: dict[str, str]
) -> Iterator[str]:
    """Yield the lines of a model card: metadata, what the artifact is, how to run it, its figures
    and its licence."""
    yield "---"
    for key, value in licence.items():
        yield f"{key}: {printable(value)}"
    if bases := [c.directory for c in (manifest.target, manifest.draft) if c.commit is not None]:
        yield from ("base_model:", *(f"- {str(base).split(':')[0]}" for base in bases))
    yield from ("library_name: eagle-aot", "pipeline_tag: text-generation")
    yield from ("tags:", "- executorch", "- speculative-decoding", f"- {manifest.drafter}", "---")
    yield from ("", f"# {repository.id.split('/')[1]}", "")
    yield (
        f"{described(manifest.target)} with the drafter {manifest.drafter}"
        f"{f' ({described(manifest.draft)})' if manifest.draft.files else ''}, compiled ahead of "
        f"time into one ExecuTorch program for {compiled_for(manifest)} by eagle-aot "
        f"{manifest.eagle_aot_version}. Speculative decoding gives, token for token, the text of "
        "plain decoding."
    )
    yield from ("", "## Run it", "", "```bash", f"eagle-run {repository} --chat")
    yield from (f"eagle-serve {repository}   # the OpenAI API", "```")
    yield from ("", "## Figures", "", "| | |", "|---|---|")
    for name, value in figures(manifest):
        yield f"| {name} | {printable(value)} |"
    yield from ("", "## Licence", "")
    licence_name = licence.get("license_name", licence.get("license"))
    yield (
        f"That of the base model: {printable(licence_name)}."
        if licence_name
        else "That of the base model, which this card does not know: see the base model."
    )


def described(checkpoint: CheckpointIdentity) -> str:
    """Return a checkpoint's repository and commit, else the name of its directory."""
    name = printable(checkpoint.directory or "random weights")
    return name if checkpoint.commit is None else f"{name} at commit {checkpoint.commit[:12]}"


def compiled_for(manifest: Manifest) -> str:
    """Return the backend and, if native code was compiled, the GPU that it needs."""
    device = manifest.device
    if device is None:
        return f"{manifest.backend}, any CPU"
    return f"{manifest.backend}, {printable(device.name)} ({device.compute_capability})"


def figures(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield names and values of what the manifest records of size, memory, drafts and time."""
    yield "size", gigabytes(sum(record.bytes for record in manifest.files.values()))
    yield "context", f"{manifest.max_seq_len:,} tokens"
    yield "sequences at a time", str(manifest.max_batch_size)
    if (caches := CacheBytes.of(manifest)) is not None:
        yield "caches of a sequence", gigabytes(caches.bytes_of_a_sequence)
    readings = (manifest.self_test or {}).get("readings", [])
    for reading in readings:
        if reading.get("chosen"):
            yield "tokens per round in the self-test", f"{reading['tau']:.2f}"
    yield "time of the export", f"{sum(stage.seconds for stage in manifest.stages):.0f} s"
    names = ("torch", "executorch")
    versions = ", ".join(f"{name} {manifest.versions.get(name, '-')}" for name in names)
    yield "made with", f"{versions}; published with eagle-aot {__version__}"
