"""The vocab stage as the build sees it: what decides its identity, and how it is built."""

from tasks.artifact import Artifact
from tasks.build import RunContext, Stage, build_artifact
from tasks.report import StageReport
from tasks.vocab.config import VocabConfig
from tasks.workspace import Workspace

VOCAB = Stage("vocab", roots=("tasks.vocab.stage",), libraries=("numpy", "pyarrow", "sentencepiece"))


def build_vocab(context: RunContext, documents: Artifact, config: VocabConfig) -> Artifact:
    """The tokenizer artifact of `documents` under `config`."""

    def run(workspace: Workspace) -> StageReport:
        from tasks.vocab.training import train_vocabulary

        return train_vocabulary(documents, config, workspace)

    return build_artifact(context, VOCAB, config, {"documents": documents}, run)
