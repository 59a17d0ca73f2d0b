"""Whether a run can go on from a trained network under its settings, told without opening the weights."""

from pathlib import Path

from model.errors import RecipeError
from model.strict import Strict

MAY_DIFFER = ("vocab_size", "dropout", "z_loss", "init", "init_std")
"""Settings of a network that say nothing of the shape or meaning of its weights, or that are looked at apart."""


def check_same_shape(folder: Path, found: Strict, asked: Strict) -> None:
    """Raise RecipeError where the network `found` in `folder` is not the one `asked` for; tells all that is to be
    set."""
    if type(found) is not type(asked):
        has, wanted = (getattr(one, "architecture", "another network") for one in (found, asked))
        raise RecipeError(
            f"the model in {folder} is a {has}, and this run asks for a {wanted}. Set train.model.architecture ="
            f' "{has}" and the rest of train.model as it was trained.'
        )
    other = {
        name: getattr(found, name)
        for name in type(found).model_fields
        if name not in MAY_DIFFER and getattr(found, name) != getattr(asked, name)
    }
    if other:
        has = ", ".join(f"{name} = {value}" for name, value in other.items())
        wanted = ", ".join(str(getattr(asked, name)) for name in other)
        cure = ", ".join(f"train.model.{name} = {value}" for name, value in other.items())
        raise RecipeError(
            f"the model in {folder} has {has}, and this run asks for {wanted}. Set {cure}, as it was trained."
        )
