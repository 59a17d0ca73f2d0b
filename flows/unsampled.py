"""The files that a run's sources list, and what became of one that left no document."""

from pathlib import Path

from flows.record import recipe_of
from model.errors import InputError, RecipeError
from tasks.artifact import Artifact
from tasks.sample.discovery import InputFile, find_files

MOST_FILES = 20


def listed_files(run_folder: Path, wanted: str) -> list[InputFile]:
    """The files of the run's sources whose path on this machine, or within its source, contains `wanted`; 20 at most.

    The folders are listed again as the run's recipe names them, so that files which are gone since are not found.
    """
    recipe = recipe_of(run_folder)
    found: list[InputFile] = []
    for source in recipe.sample.sources:
        try:
            (listing,) = find_files(recipe.sample.model_copy(update={"sources": (source,)}))
        except (InputError, RecipeError):
            continue  # Its folder is gone: nothing of it can be told.
        found += [file for file in listing.files if wanted in file.relative or wanted in str(file.path)]
    return found[:MOST_FILES]


def why_unsampled(file: InputFile, sample: Artifact) -> str:
    """A sentence about a listed file without a document and without a reject."""
    rate = float(sample.report.facts["mixture_plan"][file.source]["rate"])
    where = f"{file.source}: {file.relative}"
    if file.size == 0:
        return f"{where}: an empty file, which holds no record"
    if rate < 1:
        return (
            f"{where}: read and not selected; of the records of `{file.source}` sampling kept {rate:.1%}, chosen by the"
            f" hash of their ids, since its share of the mixture or the run's --limit asks for no more"
        )
    return f"{where}: read, and it holds no record with a text"
