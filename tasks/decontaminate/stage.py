"""The decontaminate stage as the build sees it: name, roots, libraries. Loads neither Prefect nor heavy libraries."""

from dataclasses import dataclass
from pathlib import Path

from model.digests import unreadable_reason
from model.errors import InputError, RecipeError
from model.file_content import Content
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.references import digest_of_table, kept_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.common.digests import INPUTS, InputDigests, forget_changed_inputs
from tasks.decontaminate.config import HELDOUT_DRAW, RARITY, DecontaminateConfig
from tasks.execution.executor import make_executor

DECONTAMINATE = Stage(
    "decontaminate",
    roots=("tasks.decontaminate.stage:build_decontaminate",),
    libraries=("llvmlite", "numba", "numpy", "pyarrow", "unicode"),
)


def build_decontaminate(context: RunContext, documents: Artifact, config: DecontaminateConfig) -> Artifact:
    """Build DOCUMENTS without text that the benchmarks contain, and HELDOUT, ITEMS and LEAKS.

    Raises InputError for a benchmark that is missing, empty or lacks a field, before any document is read; RecipeError
    where the held-out documents of a run with another seed are to be kept.
    """
    benchmarks = benchmark_contents(context.root, config)
    kept = kept_artifact(config.keep, context.root, DECONTAMINATE.name)
    kept_heldout = kept_artifact(config.keep_heldout, context.root, DECONTAMINATE.name, "decontaminate.keep_heldout")
    if kept_heldout is not None:
        _check_seed(kept_heldout, config)

    def run(workspace: Workspace) -> StageReport:
        from tasks.decontaminate.pipeline import decontaminate

        executor = make_executor(config.machines, config.workers, workspace, in_threads=True)
        with forget_changed_inputs(context.root / INPUTS):
            contents = {of.path: of.content for of in benchmarks}
            return decontaminate(documents, config, contents, workspace, executor, kept, kept_heldout)

    external = {of.name: of.content.digest for of in benchmarks}
    if kept is not None:
        external["kept/rarity"] = digest_of_table(kept, RARITY)
    if kept_heldout is not None:
        external["kept/heldout"] = digest_of_table(kept_heldout, HELDOUT_DRAW)
    return build_artifact(context, DECONTAMINATE, config, {"documents": documents}, run, external)


def _check_seed(kept_heldout: Artifact, config: DecontaminateConfig) -> None:
    theirs = kept_heldout.manifest["identity_parts"]["params"]["seed"]
    if theirs != config.seed:
        raise RecipeError(
            f"decontaminate.keep_heldout: {kept_heldout.path} was made with seed = {theirs}, and this recipe has"
            f" {config.seed}, which would hold other documents out. Use its seed, or leave `keep_heldout` out."
        )


@dataclass(frozen=True)
class BenchmarkFile:
    """A file of a benchmark, a parent of the artifact by its content, and its name in the identity."""

    name: str
    path: Path
    content: Content


def benchmark_contents(root: Path, config: DecontaminateConfig) -> list[BenchmarkFile]:
    """Return the files of all benchmarks; raises InputError for one that is missing or not a file."""
    digests = InputDigests(root / INPUTS)
    found: list[BenchmarkFile] = []
    for benchmark in config.benchmarks:
        places = {"path": benchmark.path, "answers_path": benchmark.answers_path}
        for key, path in ((key, path) for key, path in places.items() if path is not None):
            if problem := unreadable_reason(path):
                raise InputError(
                    f"benchmark `{benchmark.name}`: {path} {problem}. Set its `{key}` in the recipe to a file of items"
                    f" (.jsonl, .json, .tsv, .csv, each also .gz), or of right answers."
                )
            kind = "benchmark" if key == "path" else "answers"
            found.append(BenchmarkFile(f"{kind}/{benchmark.name}", path, digests.content(path)))
    digests.save()
    return found
