"""Fine-tuning into a new folder, with the folder of finished seeds beside it."""

from pathlib import Path
from typing import Any

from model.finetune import trainer
from model.finetune.description import FinetuneDescription


def finetune(trained: Any, parent: str, config: Any, vocabulary: Any, out: Path, **options: Any) -> FinetuneDescription:
    work = out.with_name(f".seeds of {out.name}")
    for folder in (work, out):
        folder.mkdir(parents=True, exist_ok=True)
    return trainer.finetune(trained, parent, config, vocabulary, work, out, **{"identity": "one", **options})
