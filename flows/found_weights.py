"""`weights_from` of a recipe: shares of the sources that `bessemer mix` found, instead of weights by hand."""

import json
from pathlib import Path
from typing import Any

from model.errors import InputError, RecipeError
from model.sealed import given_text

EDITED = "Run `bessemer mix` again, or take the key `digest` out of a file that you changed yourself."


def with_found_weights(sources: list[Any], file: Any, folder: Path, origin: str) -> list[Any]:
    """The recipe's sources with the weights that a file gives them; as they are where `file` is None.

    A relative path is the recipe's folder's. Raises RecipeError where a source has a weight by hand too or is not in
    the file, InputError where the file is none of `bessemer mix`, IntegrityError where it is damaged.
    """
    if file is None:
        return sources
    path = folder / str(file)
    try:
        weights = json.loads(given_text(path, EDITED))["weights"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{origin}: weights_from = {str(file)!r} names {path}, which is no file of weights"
            f" ({type(error).__name__}). `bessemer mix RECIPE` writes one: mixtures/NAME/weights.json"
        ) from error
    named = [source for source in sources if isinstance(source, dict)]
    by_hand = [source.get("name") for source in named if "weight" in source]
    if by_hand:
        raise RecipeError(
            f"{origin}: source `{by_hand[0]}` has a weight, and weights_from gives it another; leave one of them out"
        )
    names = [source.get("name") for source in named]
    if set(names) != set(weights):
        raise RecipeError(
            f"{origin}: weights_from was found for the sources {', '.join(sorted(weights))}, and the recipe has"
            f" {', '.join(sorted(map(str, names)))}; shares hold for the very sources that they were found for"
        )
    return [{**source, "weight": weights[source["name"]]} if isinstance(source, dict) else source for source in sources]
