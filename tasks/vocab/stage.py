"""The vocab stage: what decides its identity, and how it is built."""

from dataclasses import replace
from pathlib import Path

from model.digests import digest_bytes, unreadable_reason
from model.errors import InputError, RecipeError
from model.file_content import Content
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.references import kept_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.common.digests import INPUTS, InputDigests, forget_changed_inputs
from tasks.tokenizer.base import MODEL_FILES
from tasks.vocab.config import VocabConfig

VOCAB = Stage(
    "vocab",
    roots=("tasks.vocab.stage:build_vocab",),
    libraries=("numpy", "protobuf", "pyarrow", "sentencepiece", "tokenizers", "unicode"),
)


def build_vocab(context: RunContext, documents: Artifact, config: VocabConfig) -> Artifact:
    """Build the tokenizer artifact of `documents` under `config`: trained, or extended from a base.

    The vocabulary that the recipe keeps is returned as it is. Raises InputError for a base that is missing, of an
    unsupported kind or lossy, before any document is read, and RecipeError for settings other than the kept one's.
    """
    kept = kept_artifact(config.keep, context.root, VOCAB.name)
    if kept is not None:
        _check_settings(kept, config)
        kept = replace(kept, cause=f"kept from {config.keep}")
        context.listener.finished(VOCAB.name, kept, 0.0)
        return kept
    base = digest_base(context.root, config.base)

    def run(workspace: Workspace) -> StageReport:
        if config.base is not None:
            from tasks.tokenizer.released import read_base, texts_begin
            from tasks.vocab.extend import extend_vocabulary

            with forget_changed_inputs(context.root / INPUTS):
                released = read_base(config.base, base)
            return extend_vocabulary(documents, config, released, texts_begin(config.base), workspace)
        from tasks.vocab.train import train_vocabulary

        return train_vocabulary(documents, config, workspace)

    external = {} if base is None else {"base": base.digest}
    if config.base is not None and _files_beside_begin_texts(config.base):
        external["base/begins"] = digest_bytes(b"true")
    return build_artifact(context, VOCAB, config, {"documents": documents}, run, external)


def _files_beside_begin_texts(base: Path) -> bool:
    from tasks.tokenizer.released import texts_begin

    # Of a `tokenizer.json` its content says so, which is read only to build.
    return base.suffix != ".json" and texts_begin(base)


def _check_settings(kept: Artifact, config: VocabConfig) -> None:
    """Raise RecipeError where the recipe asks for another vocabulary than the one that it keeps."""
    made, wanted = kept.manifest["identity_parts"]["params"], config.identity_params()
    if differing := sorted(key for key in {*made, *wanted} if made.get(key) != wanted.get(key)):
        key = differing[0]
        raise RecipeError(
            f"vocab.{key} is {wanted.get(key)!r}, and the kept vocabulary {kept.path} was made with {made.get(key)!r}."
            f" Set vocab.{key} to that, or make a new vocabulary with another `keep` than {config.keep}."
        )


def digest_base(root: Path, base: Path | None) -> Content | None:
    """Return the content of the base's file, by which it is a parent of the artifact; None where there is no base."""
    if base is None:
        return None
    check_base_exists(base)
    digests = InputDigests(root / INPUTS)
    content = digests.content(base)
    digests.save()
    return content


def check_base_exists(path: Path) -> None:
    """Raise InputError where there is no file that can be read."""
    if problem := unreadable_reason(path):
        beside = [name for name in MODEL_FILES.values() if (path.parent / name).is_file()]
        found = f" Its folder has {', '.join(beside)}." if beside else ""
        raise InputError(
            f"vocab.base: {path} {problem}. Set it to the base model's vocabulary: SentencePiece's `.model` file, a"
            f" `tokenizer.json`, or BERT's `vocab.txt`; of a run, {', '.join(MODEL_FILES.values())}.{found}"
        )
