"""`eagle-export`: export a target and its draft head to one artifact."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eagle_aot.artifact import PROGRAM, WEIGHTS, CacheBytes, Manifest
from eagle_aot.common.command import given_options
from eagle_aot.common.errors import HubError
from eagle_aot.common.process import ended_by_sigterm
from eagle_aot.common.spec import spec_command
from eagle_aot.common.text import gigabytes
from eagle_aot.export.spec import ExportSpec

if TYPE_CHECKING:
    from eagle_aot.export.plan import ExportPlan
    from eagle_aot.export.resolution import ResolvedExport

WITH_REPRODUCE = {"reproduce", "target_dir", "draft_dir", "output_dir", "as_json"}


@spec_command(ExportSpec)
def main(spec: ExportSpec) -> None:
    """Export a target model, with a draft head or alone, to one ExecuTorch program.

    \b
        eagle-export --target-model gemma4-tiny
        eagle-export --target-model gemma4-31b --drafter dflash
        eagle-export --target-model ORG/NAME --draft-model ORG/HEAD
        eagle-export --target-model model.gguf --cpu-weights int8
        eagle-export --target-model gemma4-31b --check-only
    """
    with ended_by_sigterm():
        if spec.reproduce is not None:
            reproduce(spec)
            return
        if spec.as_json and not spec.check_only:
            raise click.UsageError("--json goes with --reproduce and --check-only")
        if spec.push_to is not None and (spec.check_only or spec.is_dummy):
            raise click.UsageError("--push-to publishes an artifact of weights")
        if spec.push_to is not None and spec.target_model is None:
            publish(spec.output_dir, spec.push_to)
            return
        if spec.target_model is None:
            raise click.UsageError("--target-model is required (see eagle-inspect targets)")
        check(spec) if spec.check_only else export(spec)


def check(spec: ExportSpec) -> None:
    """Print the plan on stderr, and one line per method whose graph keeps the contract."""
    from eagle_aot.export import pipeline, resolve
    from eagle_aot.export.plan import download_bytes, plan_export

    plan = plan_export(spec)
    size = download_bytes(spec) if plan is not None and not spec.is_dummy else None
    report_plan(plan, size, spec.as_json)
    resolved = resolve(spec)
    report_drafter(spec, resolved)
    if resolved.spec.is_dummy and not spec.is_dummy:
        click.echo(f"{spec.target_model}: its geometry is checked, with random weights", err=True)
    nodes = {name: len(p.graph.nodes) for name, p in pipeline.check(resolved).items()}
    if spec.as_json:
        planned_json = None if plan is None else {**plan.to_json(), "download_bytes": size}
        click.echo(json.dumps({"plan": planned_json, "nodes": nodes}))
        return
    for name, count in nodes.items():
        click.echo(f"{name}: {count} nodes, graph contract holds")


def report_plan(plan: "ExportPlan | None", download: int | None, as_json: bool = False) -> None:
    """Print a plan on stderr."""
    from eagle_aot.export.plan import exporting_line, running_line

    if plan is None or as_json:
        return
    lines = [*plan.report(), exporting_line(plan), running_line(plan)]
    if download is not None:
        lines.append(f"to download: {gigabytes(download)}")
    for line in filter(None, lines):
        click.echo(line, err=True)


def export(spec: ExportSpec) -> None:
    """Write an artifact, and print its directory, size and memory per sequence."""
    started = time.perf_counter()
    from eagle_aot.export import pipeline, resolve
    from eagle_aot.export.loading.describe_target import report_stored
    from eagle_aot.export.lowering.backend import untested_gpu_warning
    from eagle_aot.export.plan import check_machine, plan_export, ships
    from eagle_aot.export.publish.push import check_push

    if spec.push_to is not None:
        check_push(spec.push_to)  # before the minutes of work, not after
    if not ships(spec) and (plan := plan_export(spec)) is not None:
        report_plan(plan, None)  # the size of a download is printed when it begins
        check_machine(plan, spec)
    resolved = resolve(spec)
    downloads = sum(stage.seconds for stage in resolved.progress.stages)
    resolved.progress.since(started + downloads, "begin")
    report_drafter(spec, resolved)
    if line := untested_gpu_warning(resolved.backend):
        click.echo(line, err=True)
    manifest = pipeline.export(resolved)
    report_stored(resolved.spec, resolved.dtype)
    report_artifact(resolved, manifest)
    if spec.push_to is not None:
        publish(resolved.output_dir, spec.push_to)


def publish(directory: Path | None, name: str) -> None:
    """Publish an artifact, and print where it is. Raises HubError, which says how to try again."""
    from eagle_aot.export.publish.push import check_push, push

    if directory is None:
        raise click.UsageError("--push-to publishes --output-dir, or what --target-model names")
    repository = check_push(name)
    try:
        click.echo(push(directory, repository))
    except HubError as error:
        again = f"eagle-export --push-to {name} --output-dir {directory}"
        raise HubError(f"{error}; the artifact is complete, publish it with {again}") from error


def report_drafter(spec: ExportSpec, resolved: "ResolvedExport") -> None:
    """Print on stderr that there is no head, where ngram was not requested."""
    drafter = resolved.spec.drafter
    if not resolved.spec.has_head and spec.drafter != drafter:
        name = resolved.spec.target_model
        line = f"{name}: no draft head, so {drafter} will draft; --draft-model names a head"
        click.echo(line, err=True)


def report_artifact(resolved: "ResolvedExport", manifest: Manifest) -> None:
    """Print an artifact's directory and size, the bytes of a sequence, and how many sequences fit
    into this machine's memory."""
    import torch

    from eagle_aot.common.memory import free_bytes

    size = sum(path.stat().st_size for path in resolved.output_dir.iterdir()) / 1e6
    click.echo(
        f"{resolved.output_dir}{os.sep}: {size:.1f} MB, backend {resolved.backend}, "
        f"drafter {manifest.drafter}, load format {resolved.spec.load_format}"
    )
    caches = CacheBytes.of(manifest)
    assert caches is not None, "an export records them"
    if on_gpu := manifest.backend == "cuda":
        torch.cuda.empty_cache()  # nothing of this process is needed any more
    free = free_bytes(torch.device("cuda" if on_gpu else "cpu"))
    weights = sum(manifest.files[n].bytes for n in (PROGRAM, WEIGHTS) if n in manifest.files)
    fitting = "" if free is None else f", {caches.fitting(free - weights):,} would fit here"
    click.echo(f"{caches}{fitting}")


def reproduce(spec: ExportSpec) -> None:
    """Repeat a recorded export; print its directory and what differs."""
    from eagle_aot.export.reproduce import reproduce

    if others := given_options(but=WITH_REPRODUCE):
        raise click.UsageError(
            f"--reproduce takes its options from the manifest: leave out {others[0]}"
        )
    output_dir, reproduction = reproduce(spec)
    if spec.as_json:
        click.echo(json.dumps({"output_dir": str(output_dir), **reproduction.to_json()}))
        return
    verdict = "every file is the same, bit for bit" if reproduction.identical else "not the same"
    click.echo("\n".join([*reproduction.report(), f"{output_dir}{os.sep}: {verdict}"]))
