"""What was found of a mixture: weights for a recipe, a table, and the recipe with the weights written into it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomlkit

from flows.recipe import apply_setting
from flows.trial_runs import as_setting
from model.durable import write_atomically
from model.sealed import write_sealed

WEIGHTS, MARKDOWN, RECIPE = "weights.json", "table.md", "mixed.toml"
DIGITS = 6
BELIEVABLE = 0.5
"""Share of the variance of proxies that the fit had not seen, below which its shares are noise more than an answer."""


def write_mixture(found: dict[str, Any], path: Path, settings: Sequence[str], folder: Path) -> dict[str, Any]:
    """Write all three; returns the findings with their paths."""
    # Weights of a recipe must sum to one, and digits that are cut off would be missing.
    rounded = {name: round(weight, DIGITS) for name, weight in found["weights"].items()}
    largest = max(rounded, key=rounded.__getitem__)
    rounded[largest] = round(rounded[largest] + 1 - sum(rounded.values()), DIGITS)
    found = {**found, "weights": rounded}
    write_sealed(folder / WEIGHTS, found)
    write_atomically(folder / MARKDOWN, as_markdown(found).encode())
    text = path.read_text(encoding="utf-8").replace("{recipe}", str(path.resolve().parent))
    document = tomlkit.parse(text)
    for table in ("mix", "search", "temperature", "weights_from"):
        document.pop(table, None)
    for setting in settings:
        apply_setting(document, setting)
    for name, weight in rounded.items():
        apply_setting(document, as_setting(f"sources.{name}.weight", weight))
    write_atomically(folder / RECIPE, tomlkit.dumps(document).encode())
    told = ", ".join(f"{name} {weight:.1%}" for name, weight in rounded.items())
    beside = f"predicted {found['predicted']:.4f}, as the recipe has it {found['predicted_prior']:.4f}"
    return {
        **found,
        "told": f"{told}; {beside}{doubt(found)}",
        "file": str(folder / WEIGHTS),
        "markdown": str(folder / MARKDOWN),
        "recipe": str(folder / RECIPE),
    }


def doubt(found: dict[str, Any]) -> str:
    """A sentence where the fit told little of mixtures that it had not seen; else nothing."""
    if (found["r_squared"] or 0.0) >= BELIEVABLE:
        return ""
    return (
        ". The fit tells little of mixtures that it had not seen, so that these shares are no answer: keep the"
        " recipe's, or train more proxies (--proxies), or longer ones (in the table mix.settings)"
    )


def as_markdown(found: dict[str, Any]) -> str:
    """Shares as the recipe has them and as they were found, and how far the fit is to be believed."""
    quality = ", ".join(
        f"{name} {'unknown' if found[key] is None else format(found[key], '.3f')}"
        for name, key in (("R²", "r_squared"), ("rank correlation", "rank_correlation"))
    )
    rows = [
        f"| {name} | {found['prior'][name]:.2%} | {found['weights'][name]:.2%} | {found['most'][name]:.2%} |"
        for name in found["sources"]
    ]
    parts = [
        f"{found['proxies']} proxies; on {found['kept_back']} that the fit had not seen: {quality}.",
        f"Mean {found['metric'].replace('_', ' ')} of the sources, as predicted: {found['predicted_prior']:.4f} with"
        f" the recipe's shares, {found['predicted']:.4f} with these{doubt(found)}.",
        "",
        "| source | recipe | found | most that was tried and that it can give |",
        "|---|---|---|---|",
        *rows,
    ]
    return "\n".join([*parts, ""])
