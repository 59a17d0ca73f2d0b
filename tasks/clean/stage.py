"""The clean stage as the build sees it: name, roots, libraries. Loads neither Prefect nor heavy libraries."""

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.identity import PYTHON
from tasks.artifacts.limits import DropRateLimits
from tasks.artifacts.references import digest_of_table, kept_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.clean.config import CleanConfig
from tasks.clean.presets import QUALITY
from tasks.execution.executor import make_executor

if TYPE_CHECKING:
    from tasks.clean.chain import UserResources

CLEAN = Stage(
    "clean",
    roots=("tasks.clean.stage:build_clean",),
    libraries=(
        "pyarrow",
        "numpy",
        "numba",
        "llvmlite",
        "ftfy",
        "regex",
        "emoji",
        "py3langid",
        "trafilatura",
        "resiliparse",
        "lxml",
        "justext",
        "phonenumbers",
        "python-stdnum",
        "safetensors",
        PYTHON,
        "unicode",
    ),
)


def build_clean(context: RunContext, documents: Artifact, config: CleanConfig) -> Artifact:
    """Build DOCUMENTS after edits and rules, or return the artifact that exists for the same inputs and settings.

    Raises InputError or RecipeError before any work where a list or a function of the recipe is missing or malformed.
    """
    resources, external = read_user_resources(config)
    kept = kept_artifact(config.keep, context.root, CLEAN.name) if config.quality is not None else None
    if kept is not None:
        external = {**external, "kept/quality": digest_of_table(kept, QUALITY)}

    def run(workspace: Workspace) -> StageReport:
        from tasks.clean.pipeline import clean_documents

        executor = make_executor(config.machines, config.workers, workspace, in_threads=False)
        return clean_documents(documents, config, resources, workspace, executor, kept)

    limits = DropRateLimits(CLEAN.name, config.wipe_out_limit, config.wipe_out_overrides, documents)
    return build_artifact(context, CLEAN, config, {"documents": documents}, run, external=external, limits=limits)


def read_user_resources(config: CleanConfig) -> "tuple[UserResources | None, dict[str, str]]":
    """Return what the recipe brings (None for nothing), and a digest of each resource by its name in the identity."""
    extensions = config.extensions
    if not (config.deny.is_used or config.word_lists or config.classifiers or config.spelling or extensions):
        return None, {}
    from tasks.clean.chain import UserResources
    from tasks.clean.edits.spelling import read_spelling_list
    from tasks.clean.filters.blocklist import read_deny_list
    from tasks.clean.filters.classifier import read_labelled_texts, read_model_file
    from tasks.clean.filters.word_lists import read_word_list
    from tasks.execution.plugins import load_extension

    deny = read_deny_list(config.deny)
    word_lists = {words.name: read_word_list(words) for words in config.word_lists}
    models = {chosen.name: read_model_file(chosen) for chosen in config.classifiers if chosen.path is not None}
    labelled = {chosen.name: read_labelled_texts(chosen) for chosen in config.classifiers if chosen.labels is not None}
    spellings = tuple(read_spelling_list(spelling) for spelling in config.spelling)
    loaded = {}
    if extensions is not None:
        named = (*(config.edits or ()), *(config.rules or ()), *extensions.edits, *extensions.rules)
        folder = Path(extensions.path)
        own = dict.fromkeys(name for name in named if ":" in name)
        loaded = {name: load_extension(name, folder, "clean.extensions") for name in own}
    digests = {f"function {name}": extension.fingerprint for name, extension in loaded.items()}
    digests |= {f"words {name}": words.digest() for name, words in word_lists.items()}
    digests |= {f"spelling {number}": spelling.digest() for number, spelling in enumerate(spellings, start=1)}
    digests |= {f"classifier {name}": found.digest for name, found in (*models.items(), *labelled.items())}
    if deny:
        digests["deny-list"] = deny.digest()
    return UserResources(deny, word_lists, spellings, loaded, models, labelled), digests
