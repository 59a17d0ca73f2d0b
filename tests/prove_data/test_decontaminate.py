"""Decontaminate on real text and 26 benchmarks: planted and natural leaks, every item named, the held-out split."""

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.common.numeric import wilson_interval
from tasks.decontaminate.benchmarks import read_items
from tasks.decontaminate.config import Benchmark, DecontaminateConfig
from tasks.decontaminate.recall import holds
from tasks.decontaminate.stage import build_decontaminate
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import build_dedup
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample

pytestmark = pytest.mark.prove_data

CORPORA = (
    "en_books",
    "en_techdocs_md",
    "en_speech_drama",
    "en_wiki",
    "en_textbook_guides",
    "readme_changelog_md",
    "it_techdocs",
    "ru_techdocs",
    "ru_novels",
    "zh_techdocs",
    "zh_classic_prose",
    "wiki_zh_ru",
    "social_emoji",
    "web_html_raw",
)
WHOLE = ("question_only", "question_and_answer", "line_wrapped", "case_punct", "fullwidth_or_homoglyph", "html_escaped")
PARTLY = ("first_half", "split_two_places", "numbers_changed", "short_fragment", "rephrased_or_translated")
PART_LIMITS = {"numbers_changed": 0.90, "split_two_places": 0.80, "first_half": 0.80}
"""Of the rest a part is left, or a paraphrase: no goal."""

FORM_LIMITS = {"short": 0.97, "typos": 0.90, "numbers": 0.90, "half": 0.80}
"""Of forms of the run's own controls; the others .99."""

STEMS = (
    "Which of the following best describes the main purpose of the",
    "Which of the following is an example of",
    "Which statement best explains why",
    "Which of the following statements is true of the",
    "All of the following are true except",
    "What is the most likely explanation for the",
    "Which of these is the best conclusion that can be drawn from the",
)
LABELS = Path(__file__).resolve().parents[2] / "benchmarks" / "labels"
PER_FORM = 200

Measured = Callable[..., None]
Rows = list[dict[str, Any]]


def records(path: Path) -> Rows:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def sampled(root: Path, paths: dict[str, Path]) -> Artifact:
    sources = tuple(
        Source(name=name, paths=(str(path),), format="jsonl", id_field="id", weight=1 / len(paths))
        for name, path in paths.items()
    )
    # Some rephrasings are empty.
    config = SampleConfig(sources=sources, budget_tokens=10**12, part_bytes=4_000_000, max_reject_share=0.05)
    return build_sample(RunContext(root, "prove"), config)


def corpora(data: Path, names: Sequence[str] = CORPORA) -> dict[str, Path]:
    return {name: data / name / "part-000.jsonl.gz" for name in names}


def all_benchmarks(data: Path) -> tuple[Benchmark, ...]:
    paths = sorted((data / "benchmarks").glob("*.jsonl.gz"))
    return tuple(Benchmark(name=path.name.partition(".")[0], path=path) for path in paths)


def decontaminated(root: Path, documents: Artifact, data: Path, **settings: Any) -> Artifact:
    config = DecontaminateConfig.model_validate({"benchmarks": all_benchmarks(data), **settings})
    result = build_decontaminate(RunContext(root, "prove"), documents, config)
    result.report.check_conservation("decontaminate")
    return result


def leaked_items(documents: Artifact, result: Artifact) -> dict[int, set[str]]:
    """Record number of a document -> the items found in it."""
    table = documents.table("documents")
    record = dict(
        zip(table.column("doc_id").to_pylist(), [o["record"] for o in table.column("origin").to_pylist()], strict=True)
    )
    found: dict[int, set[str]] = defaultdict(set)
    for leak in result.table("leaks").to_pylist():
        if leak["state"] == "leaked":
            found[record[leak["doc_id"]]].add(leak["item_id"])
    return found


TWINS = str.maketrans("авекмнорстух", "abekmhopctyx")


def test_items_planted_into_real_documents_by_others(tmp_path: Path, data: Path, measured: Measured) -> None:
    path = data / "decontam_planted" / "docs.jsonl.gz"
    documents = sampled(tmp_path, {"planted": path})
    found = leaked_items(documents, decontaminated(tmp_path, documents, data, mode="flag", planted_per_form=0))
    rows = records(path)
    whole: list[bool] = []
    for kind in (*WHOLE, *PARTLY):
        mine = [
            (number, row["planted"]["item_id"])
            for number, row in enumerate(rows)
            if row["planted"] and row["planted"]["kind"] == kind
        ]
        hits = [item in found[number] for number, item in mine]
        low, high = wilson_interval(sum(hits), len(hits))
        note = f"{sum(hits)} of {len(hits)}"
        goal = {"at_least": PART_LIMITS[kind]} if kind in PART_LIMITS else {}
        measured("decontaminate", f"found: {kind}", sum(hits) / len(hits), low=low, high=high, note=note, **goal)
        whole += hits if kind in WHOLE else []
    low, high = wilson_interval(sum(whole), len(whole))
    note = f"{sum(whole)} of {len(whole)} items that are whole in a document"
    measured(
        "decontaminate",
        "recall, planted by others",
        sum(whole) / len(whole),
        at_least=0.99,
        low=low,
        high=high,
        note=note,
    )
    flagged = [number for number in found if found[number]]
    right = sum(rows[number]["planted"] is not None for number in flagged)
    low, high = wilson_interval(right, len(flagged))
    note = f"{right} of {len(flagged)} flagged, {sum(not row['planted'] for row in rows)} clean ones beside"
    measured(
        "decontaminate", "precision, documents", right / len(flagged), at_least=0.99, low=low, high=high, note=note
    )
    items = {item.item_id: item for item in read_items(all_benchmarks(data))}
    pairs = [(number, rows[number]["text"], item) for number in flagged for item in sorted(found[number])]
    true = sum(
        any(holds(passage, items[item]) for passage in planted_in(text, rows[number])) for number, text, item in pairs
    )
    low, high = wilson_interval(true, len(pairs))
    note = f"{true} of {len(pairs)} reports share words of the item in order with what was planted, by plain Python"
    measured("decontaminate", "precision, items", true / len(pairs), at_least=0.98, low=low, high=high, note=note)


def planted_in(text: str, row: dict[str, Any]) -> tuple[str, str]:
    """Return what was planted, or the text where nothing was, without entities; as it is, and in Latin letters."""
    spans = row["planted"]["spans"] if row["planted"] else [[0, len(text)]]
    planted = re.sub(r"&[a-z#0-9]{2,6};", " ", " ".join(text[begin:end] for begin, end in spans))
    return planted, planted.casefold().translate(TWINS)


def test_stems_of_exams_are_no_leaks(tmp_path: Path, data: Path, measured: Measured) -> None:
    hosts = [row["text"][:3000] for row in records(data / "en_textbook_guides" / "part-000.jsonl.gz")[: len(STEMS)]]
    path = tmp_path / "stems.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        for number, (host, stem) in enumerate(zip(hosts, STEMS, strict=True)):
            lines.write(json.dumps({"id": str(number), "text": f"{host}\n\n{stem} chapter above?\n"}) + "\n")
    documents = sampled(tmp_path, {"stems": path})
    found = leaked_items(documents, decontaminated(tmp_path, documents, data, mode="flag", planted_per_form=0))
    measured("decontaminate", "stems of exams cut", len(found), at_most=0, note=f"{len(STEMS)} documents with a stem")


def test_flags_of_real_corpora_are_read_one_by_one(tmp_path: Path, data: Path, measured: Measured) -> None:
    verdicts = read_flags("leak_flags.jsonl")
    names = sorted({document.partition("/")[0] for document, _ in verdicts})
    found = flagged(tmp_path, data, corpora(data, names))
    measure_flags("natural flags", found, verdicts, measured, precision=0.85, recall=0.7)


def test_flags_between_benchmarks_are_read_one_by_one(tmp_path: Path, data: Path, measured: Measured) -> None:
    items = list(read_items(all_benchmarks(data)))
    path = tmp_path / "items.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        for item in items:
            text = "\n".join(part.text for part in item.searched)
            lines.write(json.dumps({"id": item.item_id, "text": text}) + "\n")
    benchmark = {item.item_id: item.benchmark for item in items}
    found = {pair for pair in flagged(tmp_path, data, {"items": path}) if benchmark[pair[0]] != benchmark[pair[1]]}
    measure_flags("flags between benchmarks", found, read_flags("leak_flags_between_benchmarks.jsonl"), measured)


def read_flags(name: str) -> dict[tuple[str, str], str]:
    """Return (document, item) -> verdict, as read one by one."""
    rows = [json.loads(line) for line in (LABELS / name).read_text().splitlines()]
    return {(row["doc"], row["item"]): row["verdict"] for row in rows}


def flagged(root: Path, data: Path, paths: dict[str, Path]) -> set[tuple[str, str]]:
    """Return the (document, item) that a run over these files flags."""
    ids = {name: [record["id"] for record in records(path)] for name, path in paths.items()}
    documents = sampled(root, paths)
    table = documents.table("documents").select(["doc_id", "source", "origin"]).to_pylist()
    named = {row["doc_id"]: ids[row["source"]][row["origin"]["record"]] for row in table}
    result = decontaminated(root, documents, data, mode="flag", planted_per_form=0)
    leaked = (leak for leak in result.table("leaks").to_pylist() if leak["state"] == "leaked")
    return {(named[leak["doc_id"]], leak["item_id"]) for leak in leaked}


def measure_flags(
    title: str,
    found: set[tuple[str, str]],
    verdicts: dict[tuple[str, str], str],
    measured: Measured,
    precision: float = 0.0,
    recall: float = 0.0,
) -> None:
    read = found & verdicts.keys()
    right = sum(verdicts[pair] == "leak" for pair in read)
    low, high = wilson_interval(right, len(read))
    note = f"{right} of {len(read)} flags read are leaks, {len(found - read)} not read"
    measured(
        "decontaminate", f"precision, {title}", right / len(read), at_least=precision, low=low, high=high, note=note
    )
    leaks = [pair for pair, verdict in verdicts.items() if verdict == "leak"]
    kept = sum(pair in found for pair in leaks)
    low, high = wilson_interval(kept, len(leaks))
    note = f"{kept} of {len(leaks)} leaks that a looser search of the same texts shows"
    measured("decontaminate", f"recall, {title}", kept / len(leaks), at_least=recall, low=low, high=high, note=note)


def test_natural_leaks_of_real_corpora(tmp_path: Path, data: Path, measured: Measured) -> None:
    names = ("wiki_zh_ru", "en_speech_drama", "en_wiki", "readme_changelog_md", "web_html_raw", "zh_classic_prose")
    truth = records(data / "decontam_natural" / "hits.jsonl.gz")
    found: dict[str, set[str]] = {}
    for name in names:
        documents = sampled(tmp_path / name, corpora(data, [name]))
        result = decontaminated(tmp_path / name, documents, data, mode="flag", planted_per_form=0)
        rows = records(data / name / "part-000.jsonl.gz")
        found |= {rows[number]["id"]: items for number, items in leaked_items(documents, result).items()}
    by_runs = [hit for hit in truth if hit["benchmark"] not in ("cmrc2018", "drcd")]
    named = [hit for hit in by_runs if hit["item_id"] in found.get(hit["doc_id"], ())]
    note = ", ".join(hit["item_id"] for hit in by_runs if hit not in named)
    measured(
        "decontaminate",
        "natural leaks found, in words",
        len(named) / len(by_runs),
        at_least=0.8,
        note=f"{len(named)} of {len(by_runs)}; not found: {note}",
    )
    long = [hit for hit in truth if hit not in by_runs and hit["n13"] >= 28]
    phrases = [hit for hit in truth if hit not in by_runs and hit["n13"] < 28]
    measured(
        "decontaminate",
        "natural leaks of 40 characters",
        sum(hit["doc_id"] in found for hit in long) / len(long),
        at_least=1.0,
        note=f"{len(long)} Chinese documents",
    )
    measured(
        "decontaminate",
        "phrases reported as leaks",
        sum(hit["doc_id"] in found for hit in phrases),
        at_most=0,
        note=f"{len(phrases)} Chinese documents share a name or a phrase of under 40 characters",
    )


def test_paraphrases_are_the_known_limit(tmp_path: Path, data: Path, measured: Measured) -> None:
    path = data / "decontam_rephrased" / "pairs.jsonl.gz"
    documents = sampled(tmp_path, {"rephrased": path})
    found = leaked_items(documents, decontaminated(tmp_path, documents, data, mode="flag", planted_per_form=0))
    kinds = Counter(row["kind"] for row in records(path))
    seen = Counter(row["kind"] for number, row in enumerate(records(path)) if found.get(number))
    for kind, count in sorted(kinds.items()):
        low, high = wilson_interval(seen[kind], count)
        measured("decontaminate", f"found: {kind}", seen[kind] / count, low=low, high=high, note="no target")


def test_a_run_over_all_corpora_measures_itself_and_names_every_item(
    tmp_path: Path, data: Path, measured: Measured
) -> None:
    documents = sampled(tmp_path, corpora(data))
    result = decontaminated(tmp_path, documents, data, planted_per_form=PER_FORM)
    facts = result.report.facts
    for form, line in facts["planted"]["forms"].items():
        note = f"{line['found']} of {line['planted']} planted by the run itself"
        measured(
            "decontaminate",
            f"recall: {form}",
            line["recall"],
            at_least=FORM_LIMITS.get(form, 0.99),
            low=line["low"],
            high=line["high"],
            note=note,
        )
    planted, precision = facts["planted"], facts["planted"]["precision"]
    measured("decontaminate", "recall", planted["recall"], at_least=0.98, low=planted["low"], high=planted["high"])
    note = f"{precision['right']} of {precision['reported']} reports, {planted['near_misses']} near misses among them"
    measured(
        "decontaminate",
        "precision",
        precision["precision"],
        at_least=0.99,
        low=precision["low"],
        high=precision["high"],
        note=note,
    )
    states: dict[str, dict[str, str]] = defaultdict(dict)
    for leak in result.table("leaks").to_pylist():
        states[leak["benchmark"]][leak["item_id"]] = leak["state"]
    for benchmark in ("mmlu", "drcd", "piqa"):
        items = {row["id"] for row in records(data / "benchmarks" / f"{benchmark}.jsonl.gz")}
        note = ", ".join(f"{count} {state}" for state, count in sorted(Counter(states[benchmark].values()).items()))
        named = len(items & states[benchmark].keys()) / len(items)
        measured("decontaminate", f"items of {benchmark} named", named, at_least=1.0, note=note)


def test_no_near_copy_of_a_held_out_document_stays_in_training(tmp_path: Path, data: Path, measured: Measured) -> None:
    for name in ("neardup_revisions", "neardup_editions"):
        root = tmp_path / name
        documents = sampled(root, {name: data / name / "docs.jsonl.gz"})
        ids = [row["id"] for row in records(data / name / "docs.jsonl.gz")]
        unique = build_dedup(RunContext(root, "prove"), documents, DedupConfig())
        result = decontaminated(root, unique, data, heldout_share=0.2, planted_per_form=0)
        held, kept = (
            {ids[origin["record"]] for origin in result.table(table).column("origin").to_pylist()}
            for table in ("heldout", "documents")
        )
        pairs = [
            (row["id_a"], row["id_b"]) for row in records(data / name / "pairs.jsonl.gz") if row["jaccard5"] >= 0.8
        ]
        across = sum((a in held and b in kept) or (b in held and a in kept) for a, b in pairs)
        assert held
        assert not held & kept
        measured(
            "decontaminate",
            f"near copies across the split of {name}",
            across,
            at_most=0,
            note=f"{len(held)} held out, {len(kept)} kept, {len(pairs)} labelled pairs at J >= .8",
        )
