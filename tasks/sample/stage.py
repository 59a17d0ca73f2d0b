"""What the build needs to know about sample; knows neither Prefect nor heavy libraries."""

import functools
from contextlib import nullcontext
from pathlib import Path

from tasks.artifact import Artifact
from tasks.build import RunContext, Stage, build_artifact
from tasks.digests import InputDigests, combined_digest
from tasks.identity import PYTHON
from tasks.report import StageReport
from tasks.sample.config import SampleConfig
from tasks.sample.discovery import InputFile, SourceFiles, find_files
from tasks.sample.limits import RejectLimits
from tasks.sample.remote import RemoteFile
from tasks.store.patience import heard_waits
from tasks.workspace import Workspace

SAMPLE = Stage("sample", roots=("tasks.sample.stage",), libraries=("pyarrow", "zstandard", "orjson", "numpy", PYTHON))
UNREADABLE = "unreadable"


def build_sample(context: RunContext, config: SampleConfig, known: list[SourceFiles] | None = None) -> Artifact:
    """DOCUMENTS of all sources; the files count by content. `known` are the sources' files where they are listed.

    Raises InputError before any work for a missing path, a pattern without a match, or an empty source.
    """
    # A forecast (`explain`) does not wait for a server.
    with nullcontext() if context.dry else heard_waits(functools.partial(context.note, SAMPLE.name)):
        listings = find_files(config) if known is None else known
        external = source_digests(listings, context.root / "inputs.json")

    def run(workspace: Workspace) -> StageReport:
        from tasks.sample.sampling import sample_documents

        return sample_documents(listings, config, workspace)

    limits = RejectLimits(config.max_reject_share)
    return build_artifact(context, SAMPLE, config, {}, run, external=external, limits=limits)


def source_digests(listings: list[SourceFiles], cache: Path) -> dict[str, str]:
    """`source/NAME` -> one digest over the root-relative paths and contents of the source's files."""
    return {f"source/{name}": combined_digest(files) for name, files in file_digests(listings, cache).items()}


def file_digests(listings: list[SourceFiles], cache: Path) -> dict[str, list[tuple[str, str]]]:
    """Source -> (root-relative path, digest of the content) of each file; unchanged ones are recognised unread."""
    digests = InputDigests(cache)
    try:
        return {
            listing.source.name: [(file.relative, _digest(digests, file)) for file in listing.files]
            for listing in listings
        }
    finally:
        digests.save()


def _digest(digests: InputDigests, file: InputFile) -> str:
    try:
        if isinstance(file.path, RemoteFile):
            return digests.digest_stream(file.path.uri, file.path.mark, file.path.open)
        return digests.digest(file.path)
    except OSError:
        return UNREADABLE  # The reader will reject the file by name; readable again, it is another input.
