"""The few numbers at the top of the run page: what a reader asks first."""

from typing import Any

from flows.measures import OF_METRIC, line_told
from flows.wording import compact, duration, loss_unit

HEADLINE_MEASURES = ("masked_accuracy", "next_accuracy", "target_nats_per_token", "target_bits_per_byte")


def headlines(record: dict[str, Any], findings: dict[str, Any]) -> list[dict[str, str]]:
    """The few numbers at the top: what a reader asks first."""
    found: list[dict[str, str]] = []
    whole = next((line for line in findings["bits_per_byte"] if line["source"] == "all"), None)
    if whole is not None and whole.get("model") is not None:
        below = f"{1 - whole['model'] / whole['unigram']:.0%} under the unigram" if whole.get("unigram") else ""
        found.append(
            {"value": f"{whole['model']:.3f}", "name": "bits per byte, held out, mean of the sources", "note": below}
        )
    found += [
        {
            "value": OF_METRIC[line["metric"]].told(line["value"]),
            "name": f"{OF_METRIC[line['metric']].words}, held out, mean of the sources",
            "note": line_told(line).partition(" ")[2].strip("()"),
        }
        for line in findings["measures"]
        if line["source"] == "all" and line["value"] is not None and line["metric"] in HEADLINE_MEASURES
    ]
    training = findings["training"]
    if training.get("last_loss") is not None:
        note = f"from {training['first_loss']:.2f} in {training['steps']:,} steps"
        name = f"training loss, {loss_unit(findings['rows'])}"
        found.append({"value": f"{training['last_loss']:.2f}", "name": name, "note": note})
        found.append({"value": compact(training["tokens"]), "name": "tokens trained", "note": ""})
    documents = findings["conservation"].get("documents")
    if documents:
        kept = documents.get("packed", documents.get("kept", 0))
        found.append({"value": f"{kept:,}", "name": "documents kept", "note": f"of {documents['read']:,} read"})
    if findings["leaks"]:
        leaked, items = (sum(line[key] for line in findings["leaks"]) for key in ("leaked", "items"))
        found.append({"value": f"{leaked:,}", "name": "benchmark items found leaked", "note": f"of {items:,}"})
    if record.get("finished"):
        took = duration(record["finished"] - record["started"])
        found.append({"value": took, "name": "from start to end", "note": ""})
    return found
