"""A whole run made small: eight real artifacts with numbers that can be checked in the head.

books: 12 records read, 1 rejected, 1 not selected, 10 sampled; 1 held out; 9 packed.
web:   20 read and sampled; 6 dropped in clean, 4 in dedup, 1 in decontaminate; 1 held out; 8 packed.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import pyarrow as pa
import pytest

from flows.runs.record import RECORD
from model.checksummed_json import read_sealed, write_sealed
from model.data.schema import EVENTS, METRICS, ORDER, PERF, STEPS
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import SourceCounts, StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.tables.ledger import CUT, DROP, HOLD_OUT, LedgerRows
from tasks.artifacts.tables.schema import DOCUMENTS, GAPS, ITEM_SCORES, LEAKS, REJECTS, SCORES, SPANS
from tasks.artifacts.workspace import Unit, Workspace
from tasks.common.config import StrictConfig

HOSTILE = "<script>alert('from a document')</script> & \"quoted\" text of a page"
HOSTILE_FILE = 15
"""Document of the web whose file is named so; a rule removed it, on evidence that reads the same."""
STARTED = 1_800_000_000.0


@dataclass(frozen=True)
class MadeRun:
    """Where a made run lies."""

    root: Path
    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        return read_sealed(self.folder / RECORD, "")


def doc_id(source: str, number: int) -> bytes:
    return blake3.blake3(f"{source}/{number}".encode()).digest(length=16)


def file_name(source: str, number: int) -> str:
    return f"{source}/{number}.txt" if number != HOSTILE_FILE else f"{source}/{HOSTILE}.txt"


def documents(books: range, web: range) -> pa.Table:
    rows = [("books", number) for number in books] + [("web", number) for number in web]
    return pa.Table.from_pylist(
        [
            {
                "doc_id": doc_id(source, number),
                "piece": 0,
                "source": source,
                "lang": "en",
                "text": f"Text {number} of {source}. {HOSTILE}. The leaked sentence stands here. And it goes on.",
                "text_digest": bytes(16),
                "origin": {"path": file_name(source, number), "record": 0, "byte": 0},
                "meta": None,
            }
            for source, number in rows
        ],
        schema=DOCUMENTS,
    )


def counts(documents_in: int, documents_out: int, **more: Any) -> SourceCounts:
    dropped, edited = Counter(more.pop("dropped", {})), Counter(more.pop("edited", {}))
    sizes = {"bytes_in": 100 * documents_in, "bytes_out": 100 * documents_out}
    return SourceCounts(documents_in, documents_out, **sizes, dropped=dropped, edited=edited, **more)


def ledger(stage: str, *rows: tuple[Any, ...]) -> pa.Table:
    """Rows of (source, number, action, rule), and evidence where there is some."""
    made = LedgerRows(stage)
    for source, number, action, rule, *evidence in rows:
        reported = {"value": 12.0, "limit": 50.0, "bytes_in": 100, "bytes_out": 0, "evidence": None}
        made.add(doc_id=doc_id(source, number), action=action, rule=rule, **{**reported, **dict(*evidence)})
    return made.table()


def in_favour_of(source: str, number: int, jaccard: float) -> dict[str, Any]:
    return {"evidence": json.dumps({"survivor": doc_id(source, number).hex(), "jaccard": jaccard})}


def write_sample(unit: Unit) -> None:
    write_table(unit, "documents", documents(range(10), range(20)), table_file_name("documents", "00000"))
    unit.report.sources = {"books": counts(12, 10, rejected=1, not_selected=1), "web": counts(20, 20)}
    bad = {"source": "books", "path": "books/11.txt", "record": 0, "byte": 7, "reason": "invalid UTF-8 at byte 7"}
    rejects = pa.Table.from_pylist([{**bad, "excerpt": f"gl\\xfcht {HOSTILE} of smith@example.org"}], schema=REJECTS)
    write_table(unit, "rejects", rejects, table_file_name("rejects", "00000"))
    plan = {"files": 12, "bytes": 4_000_000, "weight": 0.4, "target_tokens": 400, "available_tokens": 1_000_000}
    plan |= {"rate": 0.0006, "epochs": 0.0004, "asked_epochs": 0.0004, "slack": 1.5}
    web = plan | {"files": 20, "weight": 0.6, "available_tokens": 100, "rate": 1.0, "epochs": 4, "asked_epochs": 6.0}
    unit.report.facts = {
        "files": {"books": {"read": 12}, "web": {"read": 20}},
        "mixture_plan": {"books": plan, "web": web | {"slack": 0.25}},
        "mixture_remarks": ["web: its weight asks for 6.00 epochs and max_epochs = 4 stops it"],
        "records_passed_over": {"web: messages without a text": 3},
        "unreadable_records": {"books": 1},
        "decoded_records": {},
        "rejected_files": {},
    }


def write_clean(unit: Unit) -> None:
    short = [("web", number, DROP, "gopher_words_min") for number in (14, 16, 17)]
    short.append(("web", HOSTILE_FILE, DROP, "gopher_words_min", {"evidence": f"{HOSTILE} as evidence"}))
    stops = [("web", number, DROP, "gopher_stop_words") for number in (18, 19)]
    write_table(unit, "documents", documents(range(10), range(14)), table_file_name("documents", "00000"))
    write_table(unit, "ledger", ledger("clean", *short, *stops), table_file_name("ledger", "00000"))
    dropped = {"gopher_words_min": 4, "gopher_stop_words": 2}
    unit.report.sources = {"books": counts(10, 10), "web": counts(20, 14, dropped=dropped, edited={"mojibake": 3})}


def write_dedup(unit: Unit) -> None:
    copies = [("web", number, DROP, "near_duplicate", in_favour_of("web", 2, number / 12)) for number in (10, 11)]
    copies.append(("web", 12, DROP, "near_duplicate", in_favour_of("books", 3, 0.9)))
    exact = [("web", 13, DROP, "exact_duplicate", in_favour_of("web", 2, 1.0))]
    write_table(unit, "documents", documents(range(10), range(10)), table_file_name("documents", "00000"))
    write_table(unit, "ledger", ledger("dedup", *copies, *exact), table_file_name("ledger", "00000"))
    dropped = {"near_duplicate": 3, "exact_duplicate": 1}
    unit.report.sources = {"books": counts(10, 10), "web": counts(14, 10, dropped=dropped)}
    bins = [[0.5, 0.6, 25, 3, 0.2], [0.6, 0.7, 0, 0, None], [0.9, 1.0, 50, 49, 0.999]]
    planted = {"pairs": 50, "found": 49, "recall": 0.98, "low": 0.9, "high": 0.99, "threshold": 0.8}
    unit.report.facts = {
        "clusters": {"count": 2, "largest": 3},
        "s_curve": [[0.5, 0.12], [0.8, 0.977], [1.0, 1.0]],
        "similarities": [],
        "planted": {**planted, "planted": 75, "bins": bins},
        "signed_by_datasketch": 20,
        "precision": "verified",
    }


def write_decontaminate(unit: Unit) -> None:
    fates = ledger(
        "decontaminate",
        ("books", 0, HOLD_OUT, "held_out"),
        ("web", 0, HOLD_OUT, "held_out"),
        ("books", 1, CUT, "leak"),
        ("web", 1, DROP, "too_many_pieces"),
    )
    write_table(unit, "documents", documents(range(1, 10), range(2, 10)), table_file_name("documents", "00000"))
    write_table(unit, "ledger", fates, table_file_name("ledger", "00000"))
    text = documents(range(1, 2), range(0)).column("text")[0].as_py().encode()
    start = text.index(b"The leaked sentence")
    leak = {
        "benchmark": "cloze",
        "item_id": "cloze-1",
        "state": "leaked",
        "form": "13-gram",
        "doc_id": doc_id("books", 1),
        "piece": 0,
        "start": start,
        "end": start + len(b"The leaked sentence stands here."),
        "matched": 9,
        "total": 9,
        "remains": 0,
    }
    nowhere = dict.fromkeys(("doc_id", "piece", "start", "end"))
    clean = {**leak, **nowhere, "item_id": "cloze-2", "state": "clean", "form": "none", "matched": 0}
    write_table(unit, "leaks", pa.Table.from_pylist([leak, clean], schema=LEAKS))
    unit.report.sources = {
        "books": counts(10, 9, held_out=1, pieces_out=9),
        "web": counts(10, 8, held_out=1, pieces_out=8, dropped={"too_many_pieces": 1}),
    }
    benchmark = {"items": 2, "leaked": 1, "clean": 1, "unmatchable": 0, "remains": 0}
    missed = {"planted": 0, "found": 0, "recall": None, "low": None, "high": None}
    inline = {"planted": 50, "found": 48, "recall": 0.96, "low": 0.865, "high": 0.989}
    precision = {"reported": 50, "right": 49, "precision": 0.98, "low": 0.895, "high": 0.996}
    planted = {**inline, "forms": {"inline": inline, "short": missed}, "near_misses": 50, "precision": precision}
    common = {"text": "all rights <b>reserved</b>", "documents": 12, "why": "common"}
    unit.report.facts = {
        "benchmarks": {"cloze": benchmark},
        "planted": planted,
        "common_ngrams": [common],
        "forms": {"13-gram": 1},
        "leaked_documents": 1,
    }


def extension(characters: int, tokens: list[int], per_word: list[float] | None, **more: Any) -> dict[str, Any]:
    reported = {"characters": characters, "tokens": tokens, "tokens_per_character": [n / characters for n in tokens]}
    none = {"byte_share": [0.0, 0.0], "unknown_share": [0.0, 0.0], "untouched_lines": 0, "moved_lines": 0}
    return {**reported, "tokens_per_word": per_word, **none, **more}


def write_vocab(unit: Unit) -> None:
    unit.report.facts = {
        "vocabulary": {
            "pieces": 512,
            "bytes_per_token": {"books": 3.5, "web": 3.1},
            "base": {"pieces": 480, "unreachable": 3, "besides": 0},
            "added": {"zh": {"rows": 32, "intermediates": 2, "unused": 1, "unused_examples": [HOSTILE]}},
            "languages": {
                "en": extension(1000, [250, 250], [1.25, 1.25], untouched_lines=40),
                "zh": extension(100, [150, 60], None, byte_share=[0.9, 0.05]),
            },
        }
    }


def write_chunk(unit: Unit) -> None:
    """40 reads of rows of 16 tokens: 20 of the 30 rows of books, each of the 10 rows of web twice. Row 0 is of the
    first book, row 1 of the second, and so on round."""
    rows = [*range(20), *range(30, 40), *range(30, 40)]
    write_table(unit, "sequences", pa.table({"row": pa.array(range(40), pa.int64())}), "part-00000.arrow")
    write_table(unit, "order", pa.table({"row": rows, "epoch": [0] * 30 + [1] * 10}, schema=ORDER))
    spans = [
        {"row": row, "tok_start": 0, "tok_len": 16, "piece": 0, "start": 0, "end": 9, "doc_id": doc_id(*of)}
        for row in range(40)
        for of in [("books", row % 9) if row < 30 else ("web", (row - 30) % 8)]
    ]
    write_table(unit, "spans", pa.Table.from_pylist(spans, schema=SPANS), "spans-00000.arrow")
    unit.report.sources = {"books": counts(9, 9, pieces_out=9), "web": counts(8, 8, pieces_out=8)}
    line = {"weight": 0.5, "planned_share": 0.5, "realised_share": 0.5, "reads": 20}
    unit.report.facts = {
        "mixture": {
            "books": {**line, "documents": 9, "tokens": 480, "rows": 30, "epochs": 20 / 30},
            "web": {**line, "documents": 8, "tokens": 160, "rows": 10, "epochs": 2.0, "planned_epochs": 2.25},
        },
        "rows": {"objective": "causal_lm", "packing": "best_fit", "row_length": 17, "rows": 40},
        "padding_share": 0.0025,
        "order": {"reads": 40, "tokens": 640, "asked_tokens": 640},
        "spans": {"segments": 40},
    }


def write_train(unit: Unit) -> None:
    """Ten steps of four rows; three activation ranges double with each, and step 5 has a gradient without a
    number."""
    steps = [
        {"step": step, "attempt": 0, "pos_start": 4 * step, "pos_end": 4 * step + 4, "row_pieces": 1, "applied": True}
        for step in range(10)
    ]
    metrics = [
        {
            "step": step,
            "attempt": 0,
            "tokens": 64 * (step + 1),
            "loss": 6.0 - 0.3 * step,
            "grad_norm": 1.0 if step != 5 else float("inf"),
            "lr": 1e-3,
            "max_norm": 1.0,
            "scale": 1.0,
            "largest_activations": [2.0**step, 0.5, 2.0 if step != 5 else float("inf")],
            "activation_lows": [-(2.0**step), -0.5, -1.0 if step != 5 else float("-inf")],
            "activation_highs": [1.0, 0.25, 2.0 if step != 5 else float("inf")],
        }
        for step in range(10)
    ]
    event = {"time": 0.0, "attempt": 0, "class": "Numerics", "positions": [20, 21, 22, 23]}
    reported = [{**event, "seq": 0, "step": 5, "kind": "skipped_step", "detail": json.dumps({"loss": "4.5"})}]
    write_table(unit, "events", pa.Table.from_pylist(reported, schema=EVENTS))
    unit.path("model.json").write_text(
        json.dumps({"activation_ranges": ["embedding", "block 0 attention logits", "logits"]})
    )
    unit.add_file("model.json")
    write_table(unit, "steps", pa.Table.from_pylist(steps, schema=STEPS))
    write_table(unit, "metrics", pa.Table.from_pylist(metrics, schema=METRICS))
    perf = [
        {"step": step, "attempt": 0, "wall_s": 0.064, "tokens_s": 1000.0, "mfu": 0.5 if step else None, "rss": 1}
        for step in range(10)
    ]
    write_table(unit, "perf", pa.Table.from_pylist(perf, schema=PERF))
    training = {"steps": 10, "skipped_steps": 1, "tokens": 640, "first_loss": 6.0, "last_loss": 3.3, "tokens_s": 1000.0}
    training |= {"rollbacks": 0, "seconds": 0.64}
    decision = {"by": "guard", "step": 3, "to_step": 1, "cause": "it rose", "settings": {}, "skipped": [4, 8]}
    by_hand = {**decision, "by": "hand", "step": 6, "skipped": None, "settings": {"train.schedule.peak_lr": 1e-4}}
    unit.report.facts = {"training": training, "decisions": [decision, by_hand], "exact": False}


def write_evaluate(unit: Unit) -> None:
    bits = {"books": (2.0, 2.5, 4.0, 3.0), "web": (2.5, 3.0, 4.5, 3.5), "all": (2.25, 2.75, 4.25, 3.25)}
    metrics = ("bits_per_byte", "5gram_bits_per_byte", "unigram_bits_per_byte", "xz_bits_per_byte")
    rows = [
        {"task": f"heldout/{source}", "metric": metric, "shots": 0, "subset": "all", "n": 1, "value": value}
        for source, values in bits.items()
        for metric, value in zip(metrics, values, strict=True)
    ]
    rows += [
        {"task": "cloze", "metric": "acc", "shots": shots, "subset": subset, "n": n, "value": 0.5, "stderr": 0.1}
        for shots in (0, 1, 5)
        for subset, n in (("all", 2), ("clean", 1), ("leaked", 1))
    ]
    filled = [{"stderr": None, "note": "", **row} for row in rows]
    write_table(unit, "scores", pa.Table.from_pylist(filled, schema=SCORES))
    answers = [
        {"task": "cloze", "item_id": item, "shots": shots, "state": state, "metric": "acc", "value": value}
        for shots in (0, 1, 5)
        for item, state, value in (("cloze-1", "leaked", 1.0), ("cloze-2", "clean", 0.0))
    ]
    write_table(unit, "item_scores", pa.Table.from_pylist(answers, schema=ITEM_SCORES))
    gap = {"task": "cloze", "metric": "acc", "shots": 0, "leaked_n": 1, "clean_n": 1, "difference": 1.0}
    reported = {**gap, "stderr": 0.25, "p": 0.004, "beyond_chance": True}
    write_table(unit, "gaps", pa.Table.from_pylist([reported], schema=GAPS))
    samples = [{"prompt": "Once upon", "text": " a time <b>bold</b>", "temperature": 0.8, "seed": 1}]
    write_table(unit, "samples", pa.Table.from_pylist(samples))
    unit.report.facts = {"headline": {}, "gaps": []}


WRITERS: dict[str, Callable[[Unit], None]] = {
    "sample": write_sample,
    "clean": write_clean,
    "dedup": write_dedup,
    "decontaminate": write_decontaminate,
    "vocab": write_vocab,
    "chunk": write_chunk,
    "train": write_train,
    "evaluate": write_evaluate,
}


def build(root: Path, stage: str, parents: dict[str, Artifact], facts: dict[str, Any]) -> Artifact:
    def run(workspace: Workspace) -> StageReport:
        with workspace.unit("all") as unit:
            WRITERS[stage](unit)
            unit.report.facts |= facts
        return unit.report

    made = Stage(stage, roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))
    return build_artifact(RunContext(root, "made"), made, StrictConfig(), parents, run)


def make_run(
    root: Path,
    *,
    until: str = "evaluate",
    failed: str | None = None,
    facts: dict[str, dict[str, Any]] | None = None,
    max_rise: float | None = None,
) -> MadeRun:
    """A run whose stages up to `until` were built; then `failed`, if given, ended in an error. `facts`, by stage, take
    the place of those of the same name."""
    entries: list[dict[str, Any]] = []
    parents: dict[str, Artifact] = {}
    for number, stage in enumerate(WRITERS):
        artifact = build(root, stage, parents, (facts or {}).get(stage, {}))
        parents = {stage: artifact}
        entries.append(
            {
                "stage": stage,
                "identity": artifact.identity,
                "content": artifact.content,
                "path": str(artifact.path),
                "outcome": "built",
                "cause": "no artifact of this stage exists yet",
                "seconds": 1.5,
                "started": STARTED + number,
            }
        )
        if stage == until:
            break
    if failed is not None:
        entries.append({"stage": failed, "outcome": "failed", "error": "InputError: <b>no such file</b>"})
    folder = root / "runs" / "20270115T080000Z-abcdef"
    folder.mkdir(parents=True)
    record = {
        "run_id": folder.name,
        "recipe_name": "made",
        "root": str(root),
        "started": STARTED,
        "finished": STARTED + 95,
        "state": "failed" if failed else "completed",
        "stages": entries,
        "notes": [],
        "max_rise": max_rise,
        "host": "here",
        "versions": {"pyarrow": "1", "torch": "2"},
        "machine": {"cores": 2, "memory_bytes": 8_000_000_000},
        "git": {"commit": "c0ffee", "dirty": True},
    }
    write_sealed(folder / RECORD, record)
    (folder / "recipe.toml").write_text('name = "made" # <recipe>\n')
    return MadeRun(root, folder)


@pytest.fixture(scope="module")
def made_run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """A completed run; read it, don't change it."""
    return make_run(tmp_path_factory.mktemp("made"))


@pytest.fixture
def make() -> Callable[..., MadeRun]:
    """`make(root, until=..., failed=...)` for runs that ended early."""
    return make_run
