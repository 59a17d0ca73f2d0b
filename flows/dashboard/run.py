"""The summary of a run: what became of each stage and why, the funnel, the scores, where its page lies."""

from typing import Any

from flows.conservation import conservation_line
from flows.dashboard.markdown import code, picture, table
from flows.dashboard.pictures import Bar, bars
from flows.dashboard.stages import bits_picture, scores_picture
from flows.findings import gather, known_findings
from flows.measures import whole_told
from flows.wording import compact, duration, tally
from tasks.outcome import with_short_digests

FUNNEL = (
    ("read", "read"),
    ("sample", "sampled"),
    ("clean", "cleaned"),
    ("dedup", "unique"),
    ("decontaminate", "unleaked"),
    ("chunk", "packed"),
)


def run_markdown(record: dict[str, Any]) -> str:
    """The summary of the run whose record is `record`."""
    findings = gather(record, known_findings(record))
    stages = table(
        ("stage", "outcome", "time", "result", "why"),
        [
            (
                line["stage"],
                line["outcome"],
                duration(line["seconds"]) if "seconds" in line else "-",
                _result(line),
                line.get("error") or with_short_digests(line.get("cause", "")),
            )
            for line in findings["road"]
        ],
        texts=("outcome", "why"),
    )
    funnel = _funnel(findings["funnel"])
    bits, accuracy = bits_picture(findings["bits_per_byte"]), scores_picture(findings["scores"])
    measures = whole_told(findings["measures"])
    parts = [
        f"**{record['recipe_name']}**, run {code(record['run_id'])}: {tally(record['stages'])}",
        stages,
        picture(funnel, "documents from reading to packing") if funnel else "",
        picture(bits, "bits per byte against baselines") if bits else "",
        f"Held-out text, mean of the sources: {measures}" if measures else "",
        picture(accuracy, "scores with their 95% intervals") if accuracy else "",
        conservation_line(findings["conservation"]),
        f"Page of the run, on the machine that ran it: {code(record['page'])}" if record.get("page") else "",
        f"In a terminal: {code(_report_command(record))}",
    ]
    return "\n\n".join(filter(None, parts))


def _report_command(record: dict[str, Any]) -> str:
    return f"bessemer report {record['run_id']} --root {record['root']}"


def _result(line: dict[str, Any]) -> str:
    return f"{compact(line['result']['amount'])} {line['result']['unit']}" if "result" in line else ""


def _funnel(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return ""
    read = sum(line["read"] for line in lines) or 1
    rows = []
    for key, words in FUNNEL:
        if key in lines[0]:
            count = sum(line[key] for line in lines)
            rows.append(
                Bar(words, ((count, "main"), (read - count, "pale")), f"{count:,} documents ({count / read:.0%})")
            )
    return bars("Documents on the road", rows)
