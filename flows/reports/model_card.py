"""The whole card, and the run that it tells.

The model card of a run in Hugging Face's format (Mitchell et al. 2019, arXiv 1810.03993; the head as
`huggingface.co/docs/hub/model-cards` has it), written from the run's artifacts alone.

`licences.py` judges whether a declared licence goes with those of the sources, `head.py` is what machines read,
`sections.py` what people do, `card.py` puts them together.
"""

from pathlib import Path
from typing import Any

from flows.reports import model_card_sections as sections
from flows.reports.model_card_facts import card_facts, check_licence, head, run_of_model
from flows.runs.lineage import open_run


def model_card(record: dict[str, Any], root: Path, licence: str | None = None, class_name: str | None = None) -> str:
    """The card of a run as Markdown with a YAML head; `licence` is what is declared for the model, an SPDX identifier.

    `class_name` is the class of `transformers` that loads the folder beside which the card lies. Raises RecipeError
    where the licence conflicts with those of the sources.
    """
    facts = card_facts(record, root)
    if licence is not None:
        check_licence(licence, facts.sources)
    parts = (
        sections.introduction(facts),
        sections.use(class_name) if class_name else "",
        sections.data(facts),
        sections.preparation(facts),
        sections.training(facts),
        sections.scores(facts),
        sections.cost(facts),
        sections.limits(facts),
        sections.licence(facts, licence),
        sections.provenance(facts),
    )
    library = "transformers" if class_name else None
    return head(facts, licence, library) + "\n" + "\n\n".join(filter(None, parts)) + "\n"


def run_to_tell(root: Path, model: str, folder: Path) -> dict[str, Any] | None:
    """The record of the run that `model` names, or that trained the artifact `folder`; None for a model of no run under
    `root`, such as a fine-tuned one."""
    if not Path(model).exists():
        return open_run(root, model, needs="train")
    return run_of_model(root, folder)
