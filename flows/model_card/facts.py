"""What a model card is written from: a run's record, its findings, its recipe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.findings import gather, known_findings
from flows.record import list_runs, read_recipe
from flows.run_models import model_of

LEAST_SHARE = 0.01
"""Of the documents, from which a language counts as one of the model's."""


@dataclass(frozen=True)
class CardFacts:
    """A run as its card tells it."""

    record: dict[str, Any]
    findings: dict[str, Any]
    recipe: dict[str, Any]
    """The recipe as it was resolved; empty where it is gone."""
    model: dict[str, Any]
    """`architecture` and `parameters`."""

    @property
    def sources(self) -> dict[str, str | None]:
        """Source -> its licence as the recipe states it, for the sources that training read."""
        told = {source["name"]: source.get("licence") for source in self.recipe.get("sample", {}).get("sources", [])}
        read = [line["source"] for line in self.findings["mixture"] if line["reads"]]
        return {name: told.get(name) for name in read or told}

    @property
    def languages(self) -> list[str]:
        """ISO 639 codes, the sources' own and those of a hundredth of the cleaned documents, in their order."""
        stated = {source.get("language") or "" for source in self.recipe.get("sample", {}).get("sources", [])}
        counted: dict[str, int] = self.findings["languages"]
        whole = sum(counted.values())
        found = {language for language, count in counted.items() if count >= LEAST_SHARE * whole}
        return sorted(language for language in stated | found if language.isalpha())


def card_facts(record: dict[str, Any], root: Path) -> CardFacts:
    """The facts of a run under `root`; stages that it did not reach leave theirs empty."""
    recipe = read_recipe(root / "runs" / record["run_id"])
    findings = gather(record, known_findings(record))
    return CardFacts(record, findings, recipe, model_of(record, root))


def run_of_model(root: Path, model: Path) -> dict[str, Any] | None:
    """The latest run that trained, or reused, the model of this artifact; None where none is known."""
    for record in reversed(list_runs(root)):
        if any(entry["stage"] == "train" and entry.get("path") == str(model) for entry in record["stages"]):
            return record
    return None
