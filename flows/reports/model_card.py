"""Write the model card of a run in Hugging Face's format, from the run's artifacts alone.

Model cards are those of Mitchell et al. 2019 (arXiv 1810.03993); the YAML head follows
`huggingface.co/docs/hub/model-cards`. `flows.reports.model_card_facts` collects the facts, writes the head and checks
licences. A section without facts is an empty string.
"""

import html
import shlex
from pathlib import Path

from flows.metrics.accounting import describe_conservation, format_energy
from flows.metrics.escaping import escaped
from flows.metrics.formatting import (
    describe_model,
    describe_rows,
    escape_markdown,
    format_count,
    format_duration,
    format_time,
    loss_unit,
)
from flows.metrics.heldout import describe_sampled_items
from flows.metrics.lines import Duplicates, Metrics
from flows.metrics.run_metrics import describe_base_model
from flows.reports.document import Table
from flows.reports.model_card_facts import CardFacts, card_facts, check_licence, head, run_that_trained
from flows.reports.tables import bits_table, leaks_table, removed_table, scores_table
from flows.runs.guards import describe_gate
from flows.runs.lineage import open_run
from flows.runs.record import RunData
from tasks.clean.presets import PERSONAL
from tasks.common.text import counted

UNSTATED = "not stated"


def model_card(
    record: RunData,
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
        check_licence(licence, facts.licences)
    parts = (
        _introduction(facts),
        _use(facts, class_name, tokenizer_class),
        _samples(facts),
        _data(facts),
        _preparation(facts),
        _training(facts),
        _scores(facts),
        _cost(facts),
        _limits(facts),
        _licence(facts, licence),
        _provenance(facts),
    )
    library = "transformers" if class_name else None
    return head(facts, licence, library) + "\n" + "\n\n".join(filter(None, parts)) + "\n"


def find_model_run(root: Path, model: str, folder: Path) -> RunData | None:
    """Return the record of the run that `model` names, or that trained the artifact `folder`.

    None for a model without a run under `root`, such as a fine-tuned one.
    """
    if not Path(model).exists():
        return open_run(root, model, needs="train")
    return run_that_trained(root, folder)


def _introduction(facts: CardFacts) -> str:
    lines = [
        f"# {escape_markdown(facts.record['recipe_name'])}",
        f"{describe_model(facts.model, facts.findings['training'])}, made by Bessemer in the run"
        f" `{facts.record['run_id']}`. It continues or fills in text; it is not trained to follow instructions.",
    ]
    base_model = describe_base_model(facts.findings["base_model"])
    if base_model:
        gate = describe_gate(facts.findings["gate"])
        lines.append(f"{escape_markdown(base_model)}.{f' {escape_markdown(gate)}.' if gate else ''}")
    return "\n\n".join(lines)


def _use(facts: CardFacts, class_name: str | None, tokenizer_class: str) -> str:
    """Return how the model is used: with `transformers` where `class_name` loads the exported folder.

    A prompt is one of its samples.
    """
    prompt = next((line for row in facts.samples for line in row["prompt"].splitlines()[:1]), "")
    if class_name is None:
        prompted = f" --prompt {shlex.quote(prompt)}" if prompt else ""
        command = f"bessemer model generate {facts.record['run_id']}{prompted}"
        return f"## Use\n\n    {command}" if facts.model["parameters"] else ""
    code = [
        f"from transformers import {tokenizer_class}, {class_name}",
        "",
        f'model = {class_name}.from_pretrained(".")',
        f'tokenizer = {tokenizer_class}.from_pretrained(".")',
    ]
    if facts.model["architecture"] == "gpt" and prompt:
        code += [
            f'prompt = tokenizer({prompt!r}, return_tensors="pt").input_ids',
            "print(tokenizer.decode(model.generate(prompt, max_new_tokens=50, do_sample=True)[0]))",
        ]
    return "\n".join(["## Use", "", "```python", *code, "```"])


def _samples(facts: CardFacts) -> str:
    """Return texts that the evaluation let the model write, the prompt in bold."""
    texts = [f"<pre><b>{_shown(row['prompt'])}</b>{_shown(row['text'])}</pre>" for row in facts.samples]
    return "\n\n".join(["## Samples", "Written by this model, not chosen.", *texts]) if texts else ""


def _licence(facts: CardFacts, declared: str | None) -> str:
    unstated = [name for name, stated in facts.licences.items() if stated is None]
    lines = ["## Licence"]
    if declared is None:
        lines.append("No licence is declared for this model, so none is granted.")
    else:
        lines.append(
            f"This model is licensed under {escape_markdown(declared)}; no licence of its sources conflicts with that."
        )
    lines.append("The licences of the training text are listed under Data.")
    if unstated:
        lines.append(f"No licence is stated for {_join_names(unstated)}.")
    return "\n\n".join(lines)


def _join_names(names: list[str]) -> str:
    shown = [escape_markdown(name) for name in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _data(facts: CardFacts) -> str:
    mixture = {line["source"]: line for line in facts.findings["mixture"]}
    funnel = {line["source"]: line for line in facts.findings["funnel"]}
    if not funnel:
        return ""
    rows = []
    for name, stated in facts.sources.items():
        used: tuple[object, ...] = ("-",) * 6
        if line := mixture.get(name):
            shares = (f"{line[key]:.1%}" for key in ("weight", "planned_share", "realised_share"))
            used = (line["documents"], format_count(line["tokens"]), *shares, f"{line['epochs']:.2f}")
        rows.append((name, stated or UNSTATED, funnel.get(name, {}).get("read", 0), *used))
    columns = ("source", "licence", "documents read", "used", "tokens", "weight", "planned", "trained on", "epochs")
    parts = [
        "## Data",
        Table(columns, rows, texts=("licence",)).markdown(),
        describe_conservation(facts.findings["conservation"]),
    ]
    if facts.learnt_before:
        before = [f"{name}, {stated or UNSTATED}" for name, stated in facts.learnt_before.items()]
        parts.append(f"Before that, its base models had learnt from: {escape_markdown('; '.join(before))}.")
    if facts.findings["rows"]:
        parts.append(f"Sequences: {escape_markdown(describe_rows(facts.findings['rows']))}.")
    return "\n\n".join(filter(None, parts))


def _preparation(facts: CardFacts) -> str:
    findings = facts.findings
    if not findings["funnel"]:
        return ""
    parts = ["## Data preparation"]
    if removed := removed_table(findings["removed"]):
        parts.append(removed.markdown())
    if findings["edited"]:
        edits = ", ".join(f"{line['rule']} {line['documents']:,}" for line in findings["edited"])
        parts.append(f"Documents edited and kept, by edit: {edits}.")
    parts += [_duplicates(findings["duplicates"]), _leaks(findings)]
    return "\n\n".join(filter(None, parts))


def _duplicates(found: Duplicates) -> str:
    if not found:
        return ""
    clusters, planted = found["clusters"], found["planted"]
    text = (
        f"Duplicates: {counted(clusters['count'], 'cluster')} of equal or similar documents, one of each was kept;"
        f" every removal was verified by exact Jaccard similarity."
    )
    if planted["pairs"]:
        text += (
            f" Of the copies injected to measure recall, {planted['found']} of {planted['pairs']} at a similarity of"
            f" {planted['threshold']:g} and above were found (recall {planted['recall']:.3f}, 95% interval"
            f" {planted['low']:.3f} to {planted['high']:.3f})."
        )
    return text


def _leaks(findings: Metrics) -> str:
    table = leaks_table(findings["leaks"])
    if table is None:
        return ""
    parts = [table.markdown()]
    planted = findings["leak_search"]["planted"]
    if planted["planted"]:
        parts.append(
            f"Of the items injected to measure recall, {planted['found']} of {planted['planted']} were found (recall"
            f" {planted['recall']:.3f}, 95% interval {planted['low']:.3f} to {planted['high']:.3f})."
        )
    return "\n\n".join(parts)


def _training(facts: CardFacts) -> str:
    found = facts.findings["training"]
    if not found:
        return ""
    lines = ["## Training"]
    if found["last_loss"] is not None:
        lines.append(
            f"{found['steps']:,} steps over {found['tokens']:,} tokens; the loss went from {found['first_loss']:.3f} to"
            f" {found['last_loss']:.3f} {loss_unit(facts.findings['rows'])}."
            + (f" The divergence guard skipped {found['skipped_steps']} steps." if found["skipped_steps"] else "")
        )
    shown = {name: value for name, value in facts.network.items() if isinstance(value, int | float | str)}
    if shown:
        lines.append(
            Table(("network setting", "value"), [(name, str(value)) for name, value in shown.items()]).markdown()
        )
    return "\n\n".join(lines)


def _scores(facts: CardFacts) -> str:
    """Return held-out bits per byte with baselines, and benchmark scores on all, clean and leaked items."""
    findings = facts.findings
    tables = bits_table(findings["bits_per_byte"]), scores_table(findings["scores"], findings["gaps"])
    parts = [table.markdown() for table in tables if table is not None]
    if drawn := describe_sampled_items(findings["scores"]):
        parts.append(f"Items evaluated: {escape_markdown(drawn)}.")
    return "\n\n".join(["## Scores", *parts]) if parts else ""


def _cost(facts: CardFacts) -> str:
    found = facts.findings["cost"]
    if not found:
        return ""
    text = f"All stages together took {format_duration(found['seconds'])}."
    if found["watt_hours"] is not None:
        text += (
            f" About {format_energy(found['watt_hours'])} of energy: an estimate, not a measurement, from"
            f" {found['assumption']} (Green Algorithms, Lannelongue et al. 2021)."
        )
    return f"## Energy and cost\n\n{text}"


def _limits(facts: CardFacts) -> str:
    context = facts.network.get("context")
    remains = sum(line["remains"] for line in facts.findings["leaks"])
    edits = [line["rule"].replace("_", " ") for line in facts.findings["edited"] if line["rule"] in PERSONAL]
    lines = [
        "The model writes likely text, which may be false, biased or offensive; neither bias nor harm was measured.",
        f"Languages of the training text: {_join_names(facts.languages)}." if facts.languages else "",
        f"The context is {context:,} tokens." if context else "",
        f"Personal data were replaced where patterns matched ({', '.join(edits)}); names and what the patterns"
        " miss remain."
        if edits
        else "No personal data were replaced in the training text.",
        f"The training text still holds {counted(remains, 'benchmark item')}; such scores are less reliable."
        if remains
        else "",
        *(f"{escape_markdown(remark)}." for remark in facts.findings["remarks"]),
    ]
    return "\n".join(["## Limits", "", *(f"- {line}" for line in lines if line)])


def _provenance(facts: CardFacts) -> str:
    stages = facts.findings["stages"]
    rows = [(line["stage"], line["identity"], line.get("content")) for line in stages if "identity" in line]
    columns = ("stage", "identity", "content")
    parts = ["## Provenance", Table(columns, rows, texts=columns).markdown()]
    versions = facts.record.get("versions", {})
    git = facts.record.get("git") or {}
    sentences = [f"Finished {format_time(facts.record.get('finished'))}."]
    if git.get("commit"):
        sentences.append(f"Code at commit `{git['commit']}`{' with uncommitted changes' if git.get('dirty') else ''}.")
    if versions:
        sentences.append(f"{', '.join(f'{name} {version}' for name, version in versions.items())}.")
    return "\n\n".join([*parts, " ".join(sentences)])


def _shown(text: str) -> str:
    """Return text that is shown as it is, within `<pre>`."""
    return html.escape(escaped(text), quote=False)
