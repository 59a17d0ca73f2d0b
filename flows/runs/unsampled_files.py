"""Find the files of a run's sources that left no document, and say why each did not."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.runs.record import recipe_of
from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import Artifact, manifest_of
from tasks.artifacts.results import SampleResult
from tasks.artifacts.reuse import OF_A_SOURCE

if TYPE_CHECKING:
    from tasks.sample.discovery import InputFile, SourceFiles

MAX_FILES = 20


@dataclass(frozen=True)
class ListedFile:
    """A file that a source of a run has now."""

    file: "InputFile"
    was_read: bool | None
    """Whether the run read it with its present content; None where other files of the source have changed, too."""


def listed_files(root: Path, run_id: str, wanted: str, sample: Artifact) -> list[ListedFile]:
    """Return the files of the run's sources whose path, here or within the source, contains `wanted`; 20 at most.

    The folders are listed again as the run's recipe names them, so files that were deleted since are not found.
    """
    from tasks.common.digests import INPUTS
    from tasks.sample.discovery import find_files  # Loads the configuration of the stage.
    from tasks.sample.stage import digested

    recipe, read = recipe_of(root / "runs" / run_id), manifest_of(sample)["identity_parts"]["parents"]
    found: list[ListedFile] = []
    for source in recipe.sample.sources:
        try:
            (listing,) = find_files(recipe.sample.model_copy(update={"sources": (source,)}))
            if any(_is_named(file, wanted) for file in listing.files):
                (listing,) = digested([listing], root / INPUTS)
                found += _compared(listing, wanted, read.get(f"{OF_A_SOURCE}{source.name}"))
        except (InputError, RecipeError):
            continue  # Its folder was deleted, and nothing is known of its files.
    return found[:MAX_FILES]


def explain_passed_over(root: Path, run_id: str, wanted: str) -> list[str]:
    """Return a sentence for each file that a source of the run has and does not read, and whose path contains `wanted`;
    20 at most. As for `listed_files` the folders are listed again."""
    from tasks.sample.discovery import find_files

    found: list[str] = []
    config = recipe_of(root / "runs" / run_id).sample
    for source in config.sources:
        try:
            (listing,) = find_files(config.model_copy(update={"sources": (source,)}))
        except (InputError, RecipeError):
            continue
        found += [
            f'{source.name}: {path}: not read, since its name shows no format that `format = "{source.format}"` reads'
            for path in listing.of_another_format
            if wanted in str(path)
        ]
    return found[:MAX_FILES]


def _is_named(file: "InputFile", wanted: str) -> bool:
    return wanted in file.relative or wanted in str(file.path)


def _compared(listing: "SourceFiles", wanted: str, read: str | None) -> list[ListedFile]:
    """Return the wanted files of a source, compared with the digest of all files that the run read of it."""
    from tasks.common.digests import combined_digest
    from tasks.sample.stage import file_digests

    files = [file for file in listing.files if _is_named(file, wanted)]
    digests = file_digests([listing])[listing.source.name]

    def was_read_without(names: set[str]) -> bool:
        return combined_digest(one for one in digests if one[0] not in names) == read

    if was_read_without(set()):
        return [ListedFile(file, was_read=True) for file in files]
    if was_read_without({file.relative for file in files}):
        return [ListedFile(file, was_read=False) for file in files]
    return [ListedFile(file, was_read=False if was_read_without({file.relative}) else None) for file in files]


LEFT_OUT = ", or sample.exclude_documents leaves its records out"


def explain_unsampled(listed: ListedFile, sample: Artifact) -> str:
    """Return a sentence on why a listed file left no document and no reject."""
    file = listed.file
    rate = SampleResult.of(sample.report).mixture_plan[file.source]["rate"]
    where = f"{file.source}: {file.relative}"
    if listed.was_read is False:
        return f"{where}: not read: it was not there, or could not be opened, when this run read `{file.source}`"
    if listed.was_read is None:
        return (
            f"{where}: no document and no reject; files of `{file.source}` have changed since this run read them, so"
            f" this one may not have been there, or have had other content"
        )
    if file.size == 0:
        return f"{where}: an empty file, which holds no record"
    if rate < 1:
        return (
            f"{where}: read and not selected; of the records of `{file.source}` sampling kept {rate:.1%}, chosen by the"
            f" hash of their ids, since its share of the mixture or the run's --limit asks for no more"
        )
    left_out = manifest_of(sample)["identity_parts"]["params"].get("exclude_documents")
    return f"{where}: read, and it holds no record with a text{LEFT_OUT if left_out else ''}"
