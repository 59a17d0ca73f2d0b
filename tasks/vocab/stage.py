"""The vocab stage as the build sees it: what decides its identity, and how it is built."""

from pathlib import Path

from model.durable import why_no_file
from model.errors import InputError
from tasks.artifact import Artifact
from tasks.build import RunContext, Stage, build_artifact
from tasks.digests import INPUTS, InputDigests
from tasks.report import StageReport
from tasks.vocab.config import VocabConfig
from tasks.workspace import Workspace

VOCAB = Stage(
    "vocab",
    roots=("tasks.vocab.stage:build_vocab",),
    libraries=("numpy", "protobuf", "pyarrow", "sentencepiece", "tokenizers", "unicode"),
)


def build_vocab(context: RunContext, documents: Artifact, config: VocabConfig) -> Artifact:
    """The tokenizer artifact of `documents` under `config`: trained, or grown from a base.

    Raises InputError for a base that is missing, is no SentencePiece model or loses text, before any document is read.
    """

    def run(workspace: Workspace) -> StageReport:
        if config.base is not None:
            from tasks.vocab.extending import extend_vocabulary

            return extend_vocabulary(documents, config, workspace)
        from tasks.vocab.training import train_vocabulary

        return train_vocabulary(documents, config, workspace)

    external = base_digest(context.root, config.base)
    return build_artifact(context, VOCAB, config, {"documents": documents}, run, external)


def base_digest(root: Path, base: Path | None) -> dict[str, str]:
    """`base` -> BLAKE3-128 of the base's file: it is a parent by content; nothing where there is no base."""
    if base is None:
        return {}
    check_base_stands(base)
    digests = InputDigests(root / INPUTS)
    digest = digests.digest(base)
    digests.save()
    return {"base": digest}


def check_base_stands(path: Path) -> None:
    """Raise InputError where there is no file that can be read."""
    if problem := why_no_file(path):
        raise InputError(
            f"vocab.base: {path} {problem}. Set it to the base model's vocabulary: SentencePiece's `.model` file, a"
            f" `tokenizer.json`, or BERT's `vocab.txt`."
        )
