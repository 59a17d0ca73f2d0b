"""The chunk stage: what decides its identity, and how it is built."""

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.references import digest_of_table, kept_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.chunk.config import SLOTS, ChunkConfig
from tasks.execution.executor import make_executor

CHUNK = Stage(
    "chunk",
    roots=("tasks.chunk.stage:build_chunk",),
    libraries=("llvmlite", "numba", "numpy", "pyarrow", "sentencepiece", "tokenizers", "unicode"),
)


def build_chunk(context: RunContext, documents: Artifact, vocab: Artifact, config: ChunkConfig) -> Artifact:
    """Build SEQUENCES, SPANS, ORDER and unigram counts of `documents` in the vocabulary `vocab`."""
    kept = kept_artifact(config.keep, context.root, CHUNK.name) if config.packing == "stable" else None

    def run(workspace: Workspace) -> StageReport:
        from tasks.chunk.pipeline import chunk_documents
        from tasks.chunk.slots import read_slots

        executor = make_executor(config.machines, config.workers, workspace, in_threads=True)
        plans = {} if kept is None else read_slots(kept.table(SLOTS))
        return chunk_documents(documents, vocab, config, workspace, executor, plans)

    external = {} if kept is None else {"kept/slots": digest_of_table(kept, SLOTS)}
    return build_artifact(context, CHUNK, config, {"documents": documents, "vocab": vocab}, run, external)
