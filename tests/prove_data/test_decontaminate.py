"""Decontaminate on real text and 26 benchmarks: planted and natural leaks, every item named, the held-out split."""

import gzip
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.common.numeric import wilson_interval
from tasks.decontaminate.config import Benchmark, DecontaminateConfig
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
PER_FORM = 1000

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


def words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text).casefold()
    return re.findall(r"[㐀-鿿]|[^\W_㐀-鿿]+", plain)


def runs(text: str, width: int) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[begin : begin + width]) for begin in range(len(found) - width + 1)}


def test_items_planted_into_real_documents_by_others(tmp_path: Path, data: Path, measured: Measured) -> None:
    path = data / "decontam_planted" / "docs.jsonl.gz"
    documents = sampled(tmp_path, {"planted": path})
    found = leaked_items(documents, decontaminated(tmp_path, documents, data, mode="flag", planted_per_form=0))
    rows = records(path)
    texts = {item["id"]: item for file in (data / "benchmarks").glob("*.gz") for item in records(file)}
    whole: list[bool] = []
    for kind in (*WHOLE, *PARTLY):
        mine = [
            (number, row["planted"]["item_id"])
            for number, row in enumerate(rows)
            if row["planted"] and row["planted"]["kind"] == kind
        ]
        hits = [item in found[number] for number, item in mine]
        low, high = wilson_interval(sum(hits), len(hits))
        note = f"{sum(hits)} of {len(hits)}" + ("" if kind in WHOLE else "; a part or a paraphrase: no target")
        measured("decontaminate", f"found: {kind}", sum(hits) / len(hits), low=low, high=high, note=note)
        whole += hits if kind in WHOLE else []
    low, high = wilson_interval(sum(whole), len(whole))
    note = f"{sum(whole)} of {len(whole)} items that stand whole in a document"
    measured(
        "decontaminate",
        "recall, planted by others",
        sum(whole) / len(whole),
        at_least=0.97,
        low=low,
        high=high,
        note=note,
    )
    flagged = [number for number in found if found[number]]
    right = sum(rows[number]["planted"] is not None for number in flagged)
    low, high = wilson_interval(right, len(flagged))
    note = f"{right} of {len(flagged)} flagged, {sum(not row['planted'] for row in rows)} clean ones beside"
    measured(
        "decontaminate", "precision, documents", right / len(flagged), at_least=0.98, low=low, high=high, note=note
    )
    pairs = [(rows[number]["text"], item) for number in flagged for item in sorted(found[number])]
    true = sum(stands_in(text, texts[item]) for text, item in pairs)
    low, high = wilson_interval(true, len(pairs))
    note = f"{true} of {len(pairs)} reports share a 13-gram or the whole short text, by brute force"
    measured("decontaminate", "precision, items", true / len(pairs), at_least=0.98, low=low, high=high, note=note)


def stands_in(text: str, item: dict[str, Any]) -> bool:
    """Whether a text shares a 13-gram of an item, or the whole of one of its shorter texts; by plain Python."""
    plain = one_script(re.sub(r"&[a-z#0-9]{2,6};", " ", text))
    for sought in filter(None, (item.get(key) for key in ("match_text", "question", "passage", "prompt"))):
        width = min(13, len(words(sought)))
        if not runs(plain, width).isdisjoint(runs(one_script(sought), width)):
            return True
    return False


def one_script(text: str) -> str:
    return text.casefold().translate(str.maketrans("авекмнорстух", "abekmhopctyx"))


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
        "phrases told as leaks",
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
    limits = {"inline": 0.90, "short": 0.90}
    for form, line in facts["planted"]["forms"].items():
        note = f"{line['found']} of {line['planted']} planted by the run itself"
        measured(
            "decontaminate",
            f"recall: {form}",
            line["recall"],
            at_least=limits.get(form, 0.97),
            low=line["low"],
            high=line["high"],
            note=note,
        )
    planted, precision = facts["planted"], facts["planted"]["precision"]
    measured("decontaminate", "recall", planted["recall"], at_least=0.97, low=planted["low"], high=planted["high"])
    note = f"{precision['right']} of {precision['reported']} reports, {planted['near_misses']} near misses among them"
    measured(
        "decontaminate",
        "precision",
        precision["precision"],
        at_least=0.98,
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
