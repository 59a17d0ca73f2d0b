"""What came out of a run, in words: what was made, how good it is, what was left out, what needs attention, and what to
try next. The run page begins with it, and it is the last screen of a run in a terminal.
"""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from flows.metrics.formatting import describe_model, format_duration, format_shots, format_time
from flows.metrics.heldout import mean_words, summarize_heldout_metrics
from flows.metrics.lines import Metrics
from flows.metrics.stage_lines import asked_stages, missing_artifacts
from flows.metrics.statistics import interval_of_score
from flows.reports.charts.scores import RIGHT_ITEMS, chance_of, main_metric
from flows.runs.guards import describe_gate
from flows.runs.record import (
    INTERRUPTED,
    PAUSED,
    RUNNING,
    RunData,
    newest_runs,
    read_recipe,
    root_option,
    stage_paths,
    state_of,
)
from tasks.artifacts.tables.rows import ScoreRow
from tasks.common.text import counted

MAX_TASKS = 3

MAX_RULES = 3

EXPECTED_FILE_OUTCOMES = ("read", "excluded", "of another source")
"""Outcomes of files that the recipe asks for; any other is worth attention."""

RUNS_SEARCHED = 20
"""Newest runs among which an earlier one to compare with is searched."""

DUPLICATES = "dedup"

COMPARED_RISE = 1.0
"""Rise of the base model's bits per byte up to which a run that compares with it does not fail."""


@dataclass(frozen=True)
class NextStep:
    """A command to try next, and what it does."""

    why: str
    command: str


@dataclass(frozen=True)
class Verdict:
    """A run in words; each text is one or more whole sentences, and empty where there is nothing to say."""

    made: str
    quality: str
    dropped: str
    attention: tuple[str, ...]
    """What needs attention, sentences without full stop."""
    next_steps: tuple[NextStep, ...]


def verdict(record: RunData, findings: Metrics, root: Path, *, name: str | None = None) -> Verdict:
    """Return the verdict on a run; `name` is how commands name it (`latest`), by default by its id."""
    compared = [f"{text}." for text in (describe_gate(findings["gate"]), findings["repeated_text"]) if text]
    return Verdict(
        made=_made(record, findings),
        quality=" ".join(filter(None, (_held_out(findings), *compared, _benchmarks(findings["scores"])))),
        dropped=_dropped(findings),
        attention=tuple(_attention(record, findings)),
        next_steps=tuple(_next_steps(record, findings, root, name or record["run_id"])),
    )


def _made(record: RunData, findings: Metrics) -> str:
    state, at = state_of(record), [entry["stage"] for entry in record["stages"]]
    if state in (INTERRUPTED, PAUSED):
        when = f" at {format_time(finished)}" if (finished := record.get("finished")) else ""
        place = f" in {at[-1]}" if at else ""
        same = "the same command without train.pause_share" if state == PAUSED else "the same command"
        kept = f"run {same} to go on. Finished parts and checkpoints are kept."
        return f"{state.capitalize()}{when}{place}: {kept}"
    if state == RUNNING:
        return f"This run is under way: {len(at)} of {len(asked_stages(record))} stages are done."
    if state == "failed":
        return f"This run failed{f' in {at[-1]}' if at else ''}, and what was finished is kept; the error is below."
    finished = record.get("finished")
    again = record.get("same_as") is not None
    took = f" The run took {format_duration(finished - record['started'])}." if finished and not again else ""
    if findings.get("made"):
        return f"{'. '.join(findings['made'])}.{took}"
    if "train" not in at:
        return f"The stages up to {at[-1]} are done; no model was trained in this run.{took}" if at else took.strip()
    text = describe_model(findings["model"], findings["training"])
    sources = len([line for line in findings["mixture"] if line["reads"]])
    text += f" of {sources} source{'s' if sources > 1 else ''}" if sources else ""
    return f"{text}.{took}"


def _held_out(findings: Metrics) -> str:
    whole = next((line for line in findings["bits_per_byte"] if line["source"] == "all"), {})
    mine, xz, ngram = whole.get("model"), whole.get("xz"), whole.get("5gram")
    if mine is None:
        measured = summarize_heldout_metrics(findings["measures"])
        return f"On held-out text: {measured}." if measured else ""
    compared = [
        f"{_more_or_less(mine, other)} {words} ({other:.3f})"
        for other, words in ((xz, "the compressor xz"), (ngram, "a 5-gram counted on the same text"))
        if other
    ]
    begin = "As the mean of the sources it" if mean_words(findings["bits_per_byte"]) else "It"
    text = f"{begin} takes {mine:.3f} bits for a byte of new text"
    text += f": {' and '.join(compared)}." if compared else "."
    if xz and mine >= xz:
        return (
            f"{text} A general compressor does better: it has not learnt enough yet. Train on more text or for longer."
        )
    if ngram and mine >= ngram:
        return f"{text} It learnt more than a compressor finds, and less than counting short sequences gives."
    return f"{text} It learnt more from its text than counting short sequences gives." if ngram else text


def _more_or_less(mine: float, other: float) -> str:
    change = mine / other - 1
    return f"{abs(change):.0%} {'less' if change < 0 else 'more'} than" if abs(change) >= 0.005 else "as many as"


def _benchmarks(rows: list[ScoreRow]) -> str:
    """Return the main metric with its interval beside guessing, of all items with the fewest examples before each."""
    sentences: list[str] = []
    for task in list(dict.fromkeys(row["task"] for row in rows))[:MAX_TASKS]:
        of_task = [row for row in rows if row["task"] == task]
        metric = main_metric(of_task)
        mine = [r for r in of_task if (r["metric"], r["subset"]) == (metric, "all") and r["value"] is not None]
        if not mine:
            continue
        row = min(mine, key=lambda row: row["shots"])
        value, chance = row["value"] or 0.0, chance_of([row])
        interval = interval_of_score(value, row["stderr"], row["n"])
        share, items = f"{value:.0%}{'' if interval is None else interval.beside('.0%')}", counted(row["n"], "item")
        measured = f"{share} of {items} right" if metric in RIGHT_ITEMS else f"{metric} of {share} over {items}"
        text = f"{task}, {format_shots(row['shots'])}: {measured}"
        if chance is not None:
            above = interval is not None and interval.low > chance
            text += f", guessing gives {chance:.0%}{'' if above else ', so this is not clearly better'}"
        sentences.append(f"{text}.")
    return " ".join(sentences)


def _dropped(findings: Metrics) -> str:
    documents = findings["conservation"].get("documents")
    if not documents or not documents["read"]:
        return ""
    kept = documents.get("packed", documents.get("kept", 0))
    dropped = documents["dropped"]
    rules = [line for line in findings["removed"] if line["stage"] != DUPLICATES]
    most = ", ".join(
        f"{line['rule']} {line['documents']:,}" for line in sorted(rules, key=lambda r: -r["documents"])[:MAX_RULES]
    )
    others = sum(count for stage, count in dropped.items() if stage != DUPLICATES)
    parts = [
        *((count, words) for words, count in findings["not_selected"].items()),
        (copies := dropped.get(DUPLICATES, 0), "duplicate" if copies == 1 else "duplicates"),
        (others, f"dropped by rules ({most})"),
        (documents["rejected"] - documents.get("empty", 0), "unreadable"),
        (documents.get("empty", 0), "empty"),
        (documents["held_out"], "held out to measure the model"),
    ]
    left_out = ", ".join(f"{count:,} {words}" for count, words in parts if count)
    text = f"Of {documents['read']:,} documents read, {kept:,} ({kept / documents['read']:.0%}) were kept"
    return f"{text}; the others: {left_out}." if left_out else f"{text}."


def _attention(record: RunData, findings: Metrics) -> list[str]:
    training = findings["training"]
    found = [f"{stage}: {problem}" for stage, problem in missing_artifacts(record).items()]
    if findings["conservation"] and not findings["conservation"]["balanced"]:
        found.append("the counts of documents do not add up (see the accounts below); please report this")
    by_hand = sum(line["kind"] == "by hand" for line in findings["left_out"])
    if training and (back := training["rollbacks"] - by_hand) > 0:
        found.append(f"training diverged and went back {back} time{'s' if back > 1 else ''}; a lower peak_lr is calmer")
    if remains := sum(line["remains"] for line in findings["leaks"]):
        found.append(
            f"the training text still holds {counted(remains, 'benchmark item')}; such scores are less reliable"
        )
    skipped = skipped_files(findings)
    return [*found, *findings["remarks"], *([f"files skipped: {skipped}"] if skipped else [])]


def skipped_files(findings: Metrics) -> str:
    """Return how many files of which sources were not read, and why; empty where all were."""
    return ", ".join(
        f"{count:,} {reason} in {source}"
        for source, counts in findings["files"].items()
        for reason, count in counts.items()
        if reason not in EXPECTED_FILE_OUTCOMES and count
    )


def _next_steps(record: RunData, findings: Metrics, root: Path, name: str) -> list[NextStep]:
    at = stage_paths(record)
    command = record.get("command")
    rooted = root_option(root)
    if "train" not in at or state_of(record) != "completed":
        unfinished = state_of(record) in (INTERRUPTED, PAUSED, "failed") and command
        unpaused = re.sub(r" --set '?train\.pause_share=\S+", "", command or "")
        again = [NextStep("go on", f"bessemer {unpaused}{rooted}")] if unfinished else []
        seen = [NextStep("see what was done", f"bessemer data peek clean{rooted}")] if "clean" in at else []
        return [*again, *seen]
    folder = record.get("same_as") or record["run_id"]
    recipe = read_recipe(root / "runs" / folder)
    architecture = findings["model"].get("architecture")
    # A BERT fills a blank, in any language; others begin a text of their own.
    prompt = next(iter(recipe.get("evaluate", {}).get("prompts") or ()), "___" if architecture == "bert" else "")
    prompted = f" --prompt {shlex.quote(prompt)}" if prompt else ""
    talks = architecture == "gpt"
    steps = [
        *([NextStep("talk with it", f"bessemer model chat {name}{rooted}")] if talks else []),
        NextStep("let it write", f"bessemer model generate {name}{prompted}{rooted}"),
        NextStep("use it elsewhere", f"bessemer model export {name} my-model{rooted}"),
    ]
    train = recipe.get("train", {})
    layers = train.get("model", {}).get("layers")
    # A run that goes on from a model cannot change its shape.
    if layers and command and train.get("base_model") is None:
        again = re.sub(r" --set train\.model\.layers=\S+", "", command)
        again += f" --set train.model.layers={2 * layers}"
        steps.append(NextStep("change one thing", f"bessemer {again}{rooted}"))
    measured = [line["source"] for line in findings["bits_per_byte"] if line.get("model") is not None]
    sources = [source for source in measured if source != "all"]
    if train.get("base_model") is not None and command and sources and not describe_gate(findings["gate"]):
        gate = shlex.quote(f"evaluate.gate.sources={json.dumps(sources, ensure_ascii=False)}")
        again = f"{command} --set {gate} --set evaluate.gate.max_rise={COMPARED_RISE:g}"
        steps.append(NextStep("compare to base", f"bessemer {again}{rooted}"))
    newest = newest_runs(root, RUNS_SEARCHED)[0]
    earlier = [run for run in newest if run["run_id"] < folder and run["recipe_name"] == record["recipe_name"]]
    trained = [run["run_id"] for run in earlier if "train" in stage_paths(run)]
    if trained:
        steps.append(NextStep("compare two runs", f"bessemer runs compare {trained[-1]} {name}{rooted}"))
    return steps
