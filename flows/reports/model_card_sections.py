"""What people read on a model card, section by section, as Markdown; a section without facts is empty."""

import html
from typing import Any

from flows.metrics.accounting import describe_conservation, format_energy
from flows.metrics.formatting import (
    describe_rows,
    format_count,
    format_duration,
    format_shots,
    format_time,
    loss_unit,
    markdown_table,
)
from flows.metrics.heldout import describe_sampled_items
from flows.metrics.run_metrics import describe_base_model
from flows.reports.charts.scores import score_tables
from flows.reports.model_card_facts import CardFacts
from flows.runs.guards import describe_gate

MOST_RULES = 12

UNSTATED = "not stated"

PERSONAL = ("email", "ip_address", "phone", "payment_card")
"""Edits that replace personal data."""


def introduction(facts: CardFacts) -> str:
    """What the model is, in a few sentences."""
    training = facts.findings["training"]
    size = f" of {format_count(facts.model['parameters'])} parameters" if facts.model["parameters"] else ""
    read = f", trained on {format_count(training['tokens'])} tokens" if training.get("tokens") else ""
    lines = [
        f"# {facts.record['recipe_name']}",
        f"A {(facts.model['architecture'] or 'language model').upper()}{size}{read}, made by Bessemer in the run"
        f" `{facts.record['run_id']}`. It continues or fills in text; it was not taught to follow instructions.",
    ]
    told = describe_base_model(facts.findings["base_model"])
    if told:
        gate = describe_gate(facts.findings["gate"])
        lines.append(f"{_text(told)}.{f' {_text(gate)}.' if gate else ''}")
    return "\n\n".join(lines)


def use(class_name: str) -> str:
    """How `transformers` loads the folder that the card lies in."""
    code = (
        f"from transformers import AutoTokenizer, {class_name}",
        "",
        f'model = {class_name}.from_pretrained(".")',
        'tokenizer = AutoTokenizer.from_pretrained(".")',
    )
    return "\n".join(["## Use", "", "```python", *code, "```"])


def licence(facts: CardFacts, declared: str | None) -> str:
    """What is declared for the model, and what is known of its text."""
    unstated = [name for name, stated in facts.sources.items() if stated is None]
    lines = ["## Licence"]
    if declared is None:
        lines.append("No licence is declared for this model, so that none is granted.")
    else:
        lines.append(f"This model is given under {_text(declared)}; no licence of its sources stands against that.")
    lines.append("The licences of the text stand with the data.")
    if unstated:
        lines.append(f"For {_named(unstated)} none is stated.")
    return "\n\n".join(lines)


def data(facts: CardFacts) -> str:
    """Sources with their licences and shares."""
    mixture = {line["source"]: line for line in facts.findings["mixture"]}
    funnel = {line["source"]: line for line in facts.findings["funnel"]}
    if not funnel:
        return ""
    rows = []
    for name, stated in facts.sources.items():
        line, counts = mixture.get(name, {}), funnel.get(name, {})
        rows.append(
            (
                name,
                stated or UNSTATED,
                counts.get("read", 0),
                line.get("documents", "-"),
                format_count(line["tokens"]) if line else "-",
                f"{line['weight']:.1%}" if line else "-",
                f"{line['planned_share']:.1%}" if line else "-",
                f"{line['realised_share']:.1%}" if line else "-",
                f"{line['epochs']:.2f}" if line else "-",
            )
        )
    columns = ("source", "licence", "documents read", "used", "tokens", "wanted", "planned", "trained on", "epochs")
    parts = [
        "## Data",
        markdown_table(columns, rows, texts=("licence",)),
        describe_conservation(facts.findings["conservation"]),
    ]
    if facts.findings["rows"]:
        parts.append(f"Rows: {_text(describe_rows(facts.findings['rows']))}.")
    return "\n\n".join(filter(None, parts))


def preparation(facts: CardFacts) -> str:
    """What was removed, duplicates, leaks."""
    findings = facts.findings
    if not findings["funnel"]:
        return ""
    parts = ["## How the text was prepared"]
    removed = sorted(findings["removed"], key=lambda line: -line["documents"])
    if removed:
        rows = [(f"{line['stage']}: {line['rule']}", line["documents"]) for line in removed[:MOST_RULES]]
        rest = removed[MOST_RULES:]
        rows += [(f"{len(rest)} more rules", sum(line["documents"] for line in rest))] if rest else []
        parts += ["Documents dropped by rule:", markdown_table(("rule", "documents"), rows)]
    if findings["edited"]:
        told = ", ".join(f"{line['rule']} {line['documents']:,}" for line in findings["edited"])
        parts.append(f"Edited and kept, in documents: {told}.")
    parts += [_duplicates(findings["duplicates"]), _leaks(findings)]
    return "\n\n".join(filter(None, parts))


def _duplicates(found: dict[str, Any]) -> str:
    clusters, planted = found.get("clusters"), found.get("planted", {})
    if clusters is None:
        return ""
    told = f"Duplicates: {clusters['count']:,} kept documents stand for copies, each verified by true similarity."
    if planted.get("pairs"):
        told += (
            f" Of copies planted to measure it, {planted['found']} of {planted['pairs']} at a similarity of"
            f" {planted['threshold']:g} and above were found (recall {planted['recall']:.3f}, 95% interval"
            f" {planted['low']:.3f} to {planted['high']:.3f})."
        )
    return told


def _leaks(findings: dict[str, Any]) -> str:
    if not findings["leaks"]:
        return ""
    rows = [
        (line["benchmark"], line["items"], line["leaked"], line["remains"], line["clean"], line["unmatchable"])
        for line in findings["leaks"]
    ]
    columns = ("benchmark", "items", "leaked", "still in the text", "clean", "too short to look for")
    parts = ["Benchmark items found in the text:", markdown_table(columns, rows)]
    planted = findings["leak_search"].get("planted", {})
    if planted.get("planted"):
        parts.append(
            f"Of items planted to measure the search, {planted['found']} of {planted['planted']} were found (recall"
            f" {planted['recall']:.3f}, 95% interval {planted['low']:.3f} to {planted['high']:.3f})."
        )
    return "\n\n".join(parts)


def training(facts: CardFacts) -> str:
    """Steps, tokens, loss, network."""
    found = facts.findings["training"]
    if not found:
        return ""
    lines = ["## Training"]
    if found.get("last_loss") is not None:
        lines.append(
            f"{found['steps']:,} steps over {found['tokens']:,} tokens; the loss went from {found['first_loss']:.3f} to"
            f" {found['last_loss']:.3f} {loss_unit(facts.findings['rows'])}."
            + (f" The guard skipped {found['skipped_steps']} steps." if found.get("skipped_steps") else "")
        )
    network = facts.recipe.get("train", {}).get("model", {})
    shown = {name: value for name, value in network.items() if isinstance(value, int | float | str)}
    if shown:
        lines.append(
            markdown_table(("setting of the network", "value"), [(name, str(value)) for name, value in shown.items()])
        )
    return "\n\n".join(lines)


def scores(facts: CardFacts) -> str:
    """Held-out text beside baselines, and benchmarks on all, clean and leaked items."""
    bits = [line for line in facts.findings["bits_per_byte"] if line.get("model") is not None]
    parts: list[str] = []
    if bits:
        rows = [
            (
                "all (mean)" if line["source"] == "all" else line["source"],
                *(
                    f"{line[who]:.3f}" if line.get(who) is not None else "-"
                    for who in ("model", "5gram", "unigram", "xz")
                ),
            )
            for line in bits
        ]
        parts += [
            "Bits per byte of held-out text; fewer is better.",
            markdown_table(("source", "this model", "5-gram", "token unigram", "xz"), rows),
        ]
    rows = [
        (
            f"{found['task']}, {format_shots(line['shots'])}",
            found["metric"],
            *(_cell(line["cells"].get(subset)) for subset in ("all", "clean", "leaked")),
        )
        for found in score_tables(facts.findings["scores"], facts.findings["gaps"])
        for line in found["lines"]
    ]
    if rows:
        parts += [
            "Benchmarks, ± 1.96 standard errors, with the number of items: all of them, those that were never in the"
            " text, those that were found in it.",
            markdown_table(("benchmark", "metric", "all items", "clean", "leaked"), rows, texts=("metric",)),
        ]
        if drawn := describe_sampled_items(facts.findings["scores"]):
            parts.append(f"Asked: {_text(drawn)}.")
    return "\n\n".join(["## Scores", *parts]) if parts else ""


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or row["value"] is None:
        return "-"
    error = f" ± {196 * row['stderr']:.1f}" if row["stderr"] is not None else ""
    return f"{100 * row['value']:.1f}{error} ({row['n']:,})"


def cost(facts: CardFacts) -> str:
    """Time, and energy as the estimate that it is."""
    found = facts.findings["cost"]
    if not found:
        return ""
    told = f"All stages together took {format_duration(found['seconds'])}."
    if found["watt_hours"] is not None:
        told += (
            f" About {format_energy(found['watt_hours'])} of energy: an estimate, not a measurement, from"
            f" {found['assumption']} (Green Algorithms, Lannelongue et al. 2021)."
        )
    return f"## Energy and cost\n\n{told}"


def limits(facts: CardFacts) -> str:
    """What a user must not expect."""
    context = facts.recipe.get("train", {}).get("model", {}).get("context")
    remains = sum(line["remains"] for line in facts.findings["leaks"])
    lines = [
        "It writes what is likely after its text, which may be false, biased or offensive; neither bias nor harm was"
        " measured.",
        f"It knows {_named(facts.languages)} as far as the data above hold them." if facts.languages else "",
        f"It sees {context:,} tokens at once." if context else "",
        "Personal data were replaced where patterns found them (addresses of mail and machines, phone and card"
        " numbers); names and what patterns miss are left."
        if _replaced(facts)
        else "No personal data were replaced in its text.",
        f"{remains:,} benchmark items stay in the text; scores on them tell less." if remains else "",
        *(f"{_text(remark)}." for remark in facts.findings["remarks"]),
    ]
    return "\n".join(["## Limits", "", *(f"- {line}" for line in lines if line)])


def _replaced(facts: CardFacts) -> bool:
    return any(line["rule"] in PERSONAL for line in facts.findings["edited"])


def provenance(facts: CardFacts) -> str:
    """Enough to make it again and to check every byte."""
    rows = [(line["stage"], line["identity"], line["content"]) for line in facts.findings["road"] if "identity" in line]
    parts = ["## Provenance", markdown_table(("stage", "identity", "content"), rows, texts=("identity", "content"))]
    versions = facts.record.get("versions", {})
    git = facts.record.get("git") or {}
    told = [f"Finished {format_time(facts.record.get('finished'))}."]
    if git.get("commit"):
        told.append(
            f"Code at commit `{git['commit']}`{' with changes that were not committed' if git.get('dirty') else ''}."
        )
    if versions:
        told.append(f"{', '.join(f'{name} {version}' for name, version in versions.items())}.")
    return "\n\n".join([*parts, " ".join(told)])


def _named(names: list[str]) -> str:
    told = [_text(name) for name in names]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _text(words: str) -> str:
    """Words that come from data, so that none of them is read as HTML."""
    return html.escape(words, quote=False)
