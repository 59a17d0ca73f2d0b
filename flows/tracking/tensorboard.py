"""A training as TensorBoard reads it: scalars by name, events as texts."""

from pathlib import Path

from flows.tracking.series import Training
from model.errors import InputError, RecipeError


def write_tensorboard(training: Training, folder: Path) -> Path:
    """Write an event file into `folder`, which must be new or empty, and return the folder.

    Raises InputError where something stands in the folder: TensorBoard would show both, one over the other.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise RecipeError(
            "--tensorboard needs the package `tensorboard`: pip install 'bessemer[tensorboard]'"
        ) from error
    check_empty(folder)
    with SummaryWriter(str(folder)) as writer:
        for step, time, numbers in training.rows():
            for name, value in numbers.items():
                writer.add_scalar(name, value, step, walltime=time)
        for happening in training.happenings:
            text = f"{happening.kind} {happening.detail}"
            writer.add_text(f"events/{happening.kind}", text, happening.step, walltime=happening.time)
    return folder


def check_empty(folder: Path) -> None:
    """Raise InputError where something stands in the folder already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} holds something already; remove it to export again, or name another folder")
