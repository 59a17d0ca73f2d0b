"""The summary of a run: what became of each stage and why, the funnel, the scores, where its page lies."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.conservation import conservation_line
from flows.cost import energy_told
from flows.dashboard.markdown import code, picture, plain, table
from flows.dashboard.pictures import Bar, bars
from flows.dashboard.stages import bits_picture, leaks_picture, mixture_picture, scores_picture
from flows.findings import gather, known_findings
from flows.measures import whole_told
from flows.wording import compact, duration, language_word, shots_word, tally
from tasks.outcome import with_short_digests

PAGES_AT = "BESSEMER_PAGES_AT"
"""In the environment of the service: the address at which the pages of its runs are served."""
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
    mixed, leaked = mixture_picture(findings["mixture"]), leaks_picture(findings["leaks"])
    tokens = _tokens(findings["tokens_per_character"])
    measures = whole_told(findings["measures"])
    parts = [
        f"**{plain(record['recipe_name'])}**, run {code(record['run_id'])}: {tally(record['stages'])}",
        stages,
        picture(funnel, "documents from reading to packing") if funnel else "",
        picture(mixed, "shares of the training tokens by source") if mixed else "",
        picture(leaked, "benchmark items found in the text") if leaked else "",
        picture(tokens, "tokens a character by language") if tokens else "",
        picture(bits, "bits per byte against baselines") if bits else "",
        f"Held-out text, mean of the sources: {measures}" if measures else "",
        picture(accuracy, "scores with their 95% intervals") if accuracy else "",
        _gaps(findings["gaps"]),
        conservation_line(findings["conservation"]),
        _cost(findings["cost"]),
        page_told(record.get("page"), os.environ.get(PAGES_AT)),
        f"In a terminal: {code(_command('report', record))}; its model card: {code(_command('card', record))}",
    ]
    return "\n\n".join(filter(None, parts))


def page_told(page: str | None, at: str | None) -> str:
    """Where the page of a run is: as a link where `at` is the address at which somebody serves ROOT/runs."""
    if not page:
        return ""
    if not at:
        return f"Page of the run, on the machine that ran it: {code(page)}"
    path = Path(page)
    return f"[Page of the run]({at.rstrip('/')}/{quote(path.parent.name)}/{quote(path.name)})"


def _command(name: str, record: dict[str, Any]) -> str:
    return f"bessemer {name} {record['run_id']} --root {record['root']}"


def _cost(found: dict[str, Any]) -> str:
    if not found:
        return ""
    told = f"Building all stages took {duration(found['seconds'])}"
    if found["watt_hours"] is None:
        return f"{told}."
    return f"{told}, and about {energy_told(found['watt_hours'])} by estimate: {found['assumption']}."


def _gaps(gaps: list[dict[str, Any]]) -> str:
    """Benchmarks whose leaked items were answered otherwise than clean ones."""
    told = [
        f"{plain(gap['task'])} {shots_word(gap['shots'])} {100 * gap['difference']:+.1f}"
        for gap in gaps
        if gap["beyond_chance"]
    ]
    return f"Leaked less clean items, beyond chance: {', '.join(told)} points." if told else ""


def _tokens(found: dict[str, float]) -> str:
    """A picture of how many tokens a character of each language takes."""
    rows = [Bar(language_word(language), ((value, "main"),), f"{value:.3f}") for language, value in found.items()]
    return bars("Tokens a character (fewer is denser)", rows) if rows else ""


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
