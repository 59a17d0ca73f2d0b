"""What the build needs to know about clean; knows neither Prefect nor heavy libraries."""

from tasks.artifact import Artifact
from tasks.build import RunContext, Stage, build_artifact
from tasks.clean.config import CleanConfig
from tasks.report import StageReport
from tasks.workspace import Workspace

CLEAN = Stage(
    "clean",
    roots=("tasks.clean.stage",),
    libraries=(
        "pyarrow",
        "numpy",
        "numba",
        "llvmlite",
        "ftfy",
        "regex",
        "emoji",
        "trafilatura",
        "lxml",
        "justext",
        "unicode",
    ),
)


def build_clean(context: RunContext, documents: Artifact, config: CleanConfig) -> Artifact:
    """DOCUMENTS after edits and rules; reused when neither they nor `documents` changed."""

    def run(workspace: Workspace) -> StageReport:
        from tasks.clean.chain import clean_documents

        return clean_documents(documents, config, workspace)

    return build_artifact(context, CLEAN, config, {"documents": documents}, run)
