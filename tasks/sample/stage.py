"""The declaration and build of the stage sample; imports neither Prefect nor heavy libraries."""

import functools
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from model.digests import digest_bytes
from model.errors import Infra, InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.identity import PYTHON
from tasks.artifacts.references import kept_artifact
from tasks.artifacts.remote.retries import report_waits
from tasks.artifacts.report import StageReport
from tasks.artifacts.results import SampleResult
from tasks.artifacts.workspace import Workspace
from tasks.common.confinement import is_confined
from tasks.common.digests import INPUTS, InputDigests, combined_digest, forget_changed_inputs
from tasks.execution.executor import Processes
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import (
    InputFile,
    SourceFiles,
    check_not_empty,
    find_files,
    is_fault_of_machine,
    why_unreadable,
)
from tasks.sample.limits import RejectLimits
from tasks.sample.remote import RemoteFile

SAMPLE = Stage(
    "sample",
    roots=("tasks.sample.stage:build_sample",),
    libraries=("pyarrow", "zstandard", "orjson", "numpy", "numba", "llvmlite", PYTHON),
)

UNREADABLE = "unreadable"
"""Prefix of the text that replaces the digest of an unreadable file, as of `why_unreadable`; the reason follows."""


def build_sample(context: RunContext, config: SampleConfig, known: list[SourceFiles] | None = None) -> Artifact:
    """Return the artifact with the DOCUMENTS of all sources; files count by content. `known` are the files, if listed.

    Raises InputError before any work for a missing path, a pattern without a match, or an empty source.
    """
    # A dry run (`plan`) does not wait for a server.
    with nullcontext() if context.dry else report_waits(functools.partial(context.note, SAMPLE.name)):
        listings = digested(find_files(config) if known is None else known, context.root / INPUTS)
        check_not_empty(listings)

    sizes = _kept_sizes(context.root, config)

    def run(workspace: Workspace) -> StageReport:
        from tasks.sample.sampler import sample_documents

        # Only this process knows what an untrusted recipe may read.
        executor = Processes(1 if is_confined() else config.workers)
        with forget_changed_inputs(context.root / INPUTS):
            return sample_documents(listings, config, workspace, executor, sizes)

    external = {f"source/{name}": combined_digest(files) for name, files in file_digests(listings).items()}
    if sizes:
        external["kept/sizes"] = digest_bytes(json.dumps(sizes, sort_keys=True).encode())
    limits = RejectLimits(config.max_reject_share)
    return build_artifact(context, SAMPLE, config, {}, run, external=external, limits=limits)


def _kept_sizes(root: Path, config: SampleConfig) -> dict[str, int]:
    """Return bytes of text by source, as the run measured them whose sizes are kept; empty where none is."""
    artifact = kept_artifact(config.keep, root, SAMPLE.name)
    if artifact is None:
        return {}
    names = {source.name for source in config.sources}
    plan = SampleResult.of(artifact.report).mixture_plan
    return {name: of["bytes"] for name, of in plan.items() if name in names and of["bytes"]}


def digested(listings: list[SourceFiles], cache: Path) -> list[SourceFiles]:
    """Return the listings with the content of each file; unchanged files are not read again."""
    digests = InputDigests(cache)
    try:
        return [replace(listing, files=[_digested(digests, file) for file in listing.files]) for listing in listings]
    finally:
        digests.save()


def file_digests(listings: list[SourceFiles]) -> dict[str, list[tuple[str, str]]]:
    """Return source -> (root-relative path, digest of the content) of each file; the files must be digested."""
    return {listing.source.name: [(file.relative, _digest(file)) for file in listing.files] for listing in listings}


def _digested(digests: InputDigests, file: InputFile) -> InputFile:
    if file.no_file:
        return file  # never opened, even if it becomes a file
    try:
        if isinstance(file.path, RemoteFile):
            content = digests.content_of_stream(file.path.uri, file.path.mark, file.path.open)
        else:
            content = digests.content(file.path)
    except OSError as error:
        if is_fault_of_machine(error):
            raise Infra(
                f"sample: source `{file.source}`: the operating system reported `{error}` at {file.path}. Check the"
                f" disk, and run again."
            ) from error
        if isinstance(error, FileNotFoundError) and file.size >= 0:
            raise InputError(
                f"sample: source `{file.source}`: {file.path} disappeared after its folder was listed; put it back, or"
                f" run again without it."
            ) from error
        return replace(file, unreadable=why_unreadable(error))
    return replace(file, content=content, size=content.length)


def _digest(file: InputFile) -> str:
    if file.content is not None:
        return file.content.digest
    # Once it becomes readable, or a file, it is another input.
    return f"{UNREADABLE}: {file.no_file}" if file.no_file else file.unreadable
