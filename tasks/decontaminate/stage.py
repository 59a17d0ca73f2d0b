"""Building the decontaminate artifact, without Prefect and without loading what only the work itself needs."""

from pathlib import Path

from model.durable import why_no_file
from model.errors import InputError
from tasks.artifact import Artifact
from tasks.build import RunContext, Stage, build_artifact
from tasks.decontaminate.config import DecontaminateConfig
from tasks.digests import INPUTS, InputDigests
from tasks.execution.executor import make_executor
from tasks.report import StageReport
from tasks.workspace import Workspace

DECONTAMINATE = Stage(
    "decontaminate",
    roots=("tasks.decontaminate.stage:build_decontaminate",),
    libraries=("llvmlite", "numba", "numpy", "pyarrow", "unicode"),
)


def build_decontaminate(context: RunContext, documents: Artifact, config: DecontaminateConfig) -> Artifact:
    """DOCUMENTS without what stands in the benchmarks, with HELDOUT, ITEMS and LEAKS.

    Raises InputError for a benchmark that is missing, empty or lacks a field, before any document is read.
    """

    def run(workspace: Workspace) -> StageReport:
        from tasks.decontaminate.decontaminate import decontaminate

        executor = make_executor(config.machines, config.workers, workspace, in_threads=True)
        return decontaminate(documents, config, workspace, executor)

    external = benchmark_digests(context.root, config)
    return build_artifact(context, DECONTAMINATE, config, {"documents": documents}, run, external)


def benchmark_digests(root: Path, config: DecontaminateConfig) -> dict[str, str]:
    """`benchmark/NAME` -> BLAKE3-128 of its file: benchmarks are parents by content."""
    digests = InputDigests(root / INPUTS)
    external: dict[str, str] = {}
    for benchmark in config.benchmarks:
        path = Path(benchmark.path)
        if problem := why_no_file(path):
            raise InputError(
                f"benchmark `{benchmark.name}`: {path} {problem}. Set its `path` in the recipe to a .jsonl or .jsonl.gz"
                f" file."
            )
        external[f"benchmark/{benchmark.name}"] = digests.digest(path)
        if benchmark.answers_path is not None:
            answers = Path(benchmark.answers_path)
            if problem := why_no_file(answers):
                raise InputError(
                    f"benchmark `{benchmark.name}`: {answers} {problem}. Set its `answers_path` to the file that holds"
                    f" the right answers, or leave it out."
                )
            external[f"benchmark/{benchmark.name}/answers"] = digests.digest(answers)
    digests.save()
    return external
