"""Write the model card of a run in Hugging Face's format, from the run's artifacts alone.

Model cards are those of Mitchell et al. 2019 (arXiv 1810.03993); the YAML head follows
`huggingface.co/docs/hub/model-cards`. `flows.reports.model_card_facts` collects the facts, writes the head and checks
licences; `flows.reports.model_card_sections` writes the sections.
"""

from pathlib import Path
from typing import Any

from flows.reports import model_card_sections as sections
from flows.reports.model_card_facts import card_facts, check_licence, head, run_that_trained
from flows.runs.lineage import open_run


def model_card(
    record: dict[str, Any],
    root: Path,
    licence: str | None = None,
    class_name: str | None = None,
    tokenizer_class: str = "AutoTokenizer",
) -> str:
    """Return the card of a run as Markdown with a YAML head.

    `licence` is the licence declared for the model, an SPDX identifier; `class_name` and `tokenizer_class` are the
    classes of `transformers` that load the exported folder. Raises RecipeError where the licence conflicts with those
    of the sources.
    """
    facts = card_facts(record, root)
    if licence is not None:
        check_licence(licence, facts.sources)
    parts = (
        sections.introduction(facts),
        sections.use(facts, class_name, tokenizer_class),
        sections.samples(facts),
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


def find_model_run(root: Path, model: str, folder: Path) -> dict[str, Any] | None:
    """Return the record of the run that `model` names, or that trained the artifact `folder`.

    None for a model without a run under `root`, such as a fine-tuned one.
    """
    if not Path(model).exists():
        return open_run(root, model, needs="train")
    return run_that_trained(root, folder)
