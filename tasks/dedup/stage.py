"""The dedup stage as the build sees it: name, roots, libraries. Loads neither Prefect nor heavy libraries."""

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.limits import DropRateLimits
from tasks.artifacts.references import resolve_artifacts
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.dedup.config import DedupConfig
from tasks.execution.executor import make_executor

DEDUP = Stage(
    "dedup", roots=("tasks.dedup.stage:build_dedup",), libraries=("llvmlite", "numba", "numpy", "pyarrow", "unicode")
)


def build_dedup(context: RunContext, documents: Artifact, config: DedupConfig) -> Artifact:
    """Build DOCUMENTS without copies of each other and of what earlier runs kept, and the INDEX of what was kept."""
    earlier = resolve_artifacts(config.against, context.root, "dedup", "dedup.against")

    def run(workspace: Workspace) -> StageReport:
        from tasks.dedup.pipeline import deduplicate

        executor = make_executor(config.machines, config.threads, workspace, in_threads=True)
        return deduplicate(documents, config, workspace, executor, earlier)

    parents = {"documents": documents, **{f"against-{number}": artifact for number, artifact in enumerate(earlier)}}
    limits = DropRateLimits(DEDUP.name, config.wipe_out_limit, config.wipe_out_overrides, documents)
    return build_artifact(context, DEDUP, config, parents, run, limits=limits)
