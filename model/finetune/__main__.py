"""Fine-tune without the pipeline: `python -m model.finetune MODEL TASK.toml VOCABULARY.json OUT`.

MODEL is a folder with `model.safetensors` and `model.json`, VOCABULARY a `tokenizer.json` of the library `tokenizers`
(a run's `fast_tokenizer.json`). The exit code is that of the error's class.
"""

import shutil
import sys
from pathlib import Path

from model.environment import filter_environment
from model.errors import BessemerError, RecipeError

USAGE = "call: python -m model.finetune MODEL TASK.toml VOCABULARY.json OUT"


def main(arguments: list[str]) -> int:
    """Fine-tune as the arguments say; return the exit code."""
    try:
        if len(arguments) != 4:
            raise RecipeError(f"{len(arguments)} arguments given, four expected; {USAGE}")
        model, tasks, vocabulary, out = map(Path, arguments)
        _finetune(model, tasks, vocabulary, out)
    except BessemerError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


def _finetune(model: Path, tasks: Path, vocabulary: Path, out: Path) -> None:
    from model.checkpoint.weights import description_digest, load_model
    from model.engines.runtime import flush_denormals
    from model.finetune.config import read_task_file
    from model.finetune.output import format_result
    from model.finetune.tokenizer import JsonVocabulary
    from model.finetune.trainer import finetune

    config = read_task_file(tasks)
    with flush_denormals():
        found = finetune(
            load_model(model),
            description_digest(model),
            config,
            JsonVocabulary(vocabulary),
            out,
            log=print,
            write_extra=lambda folder: _copy(vocabulary, folder / "fast_tokenizer.json"),
        )
    print("\n".join(format_result(found)))


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


if __name__ == "__main__":
    filter_environment()
    sys.exit(main(sys.argv[1:]))
