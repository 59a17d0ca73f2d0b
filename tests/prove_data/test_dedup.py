"""Dedup on real text: planted recall by similarity, precision on labelled pairs and templates."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.common.numeric import wilson_interval
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import build_dedup
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample

pytestmark = pytest.mark.prove_data

PROJECT = Path(__file__).resolve().parents[2]
CORPORA = ("en_techdocs_md", "readme_changelog_md", "zh_techdocs", "ru_techdocs", "it_techdocs", "zh_classic_prose",
           "en_books", "ru_novels")  # fmt: skip
PLANTED = 6000
PEERS = ("datatrove", "textdedup")

Measured = Callable[..., None]


def sampled(root: Path, data: Path, corpora: Sequence[str] = CORPORA) -> Artifact:
    sources = tuple(
        Source(
            name=name,
            paths=(str(data / name / "*.jsonl.gz"),),
            format="jsonl",
            id_field="id",
            weight=1 / len(corpora),
        )
        for name in corpora
    )
    config = SampleConfig(sources=sources, budget_tokens=10**12, part_bytes=4_000_000)
    return build_sample(RunContext(root, "prove"), config)


def test_recall_on_planted_copies_by_true_similarity(tmp_path: Path, data: Path, measured: Measured) -> None:
    documents = sampled(tmp_path, data)
    report = build_dedup(RunContext(tmp_path, "prove"), documents, DedupConfig(planted_pairs=PLANTED)).report
    report.check_conservation("dedup")
    planted = report.facts["planted"]
    for low, high, pairs, found, expected in planted["bins"]:
        sure = wilson_interval(found, pairs)
        at_least = 0.97 if low >= 0.8 else None
        note = f"{found} of {pairs}; the bands promise {expected}"
        what = f"recall at J {low} to {high}"
        measured("dedup", what, found / pairs, at_least=at_least, low=sure[0], high=sure[1], note=note)
        assert sure[0] is not None
        assert sure[1] is not None
        assert sure[0] - 0.02 <= expected <= sure[1] + 0.02, "the search finds what its bands promise"
    counts = [pairs for _, _, pairs, _, _ in planted["bins"]]
    assert max(counts) < 1.1 * min(counts), "true similarities are spread evenly"
    note = f"{planted['found']} of {planted['pairs']} planted pairs"
    edges = {"low": planted["low"], "high": planted["high"]}
    measured("dedup", "recall at J >= .8", planted["recall"], at_least=0.97, **edges, note=note)


def test_precision_on_labelled_pairs_and_templates(data: Path, measured: Measured) -> None:
    words = [sys.executable, str(PROJECT / "benchmarks" / "dedup_quality.py"), "--data", str(data), "--json"]
    peers = os.environ.get("BESSEMER_PEERS")
    words += ["--peers", peers] if peers else []
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = {(row["set"], row["tool"]): row for row in json.loads(done.stdout)}
    for name in ("revisions", "editions", "tldr"):
        mine = rows[name, "bessemer"]
        others = {peer: rows[name, peer] for peer in PEERS if (name, peer) in rows}
        beside = "".join(f"; {peer} {row['precision']:.3f}" for peer, row in others.items())
        low, high = wilson_interval(mine["removed"] - mine["wrong"], mine["removed"])
        note = f"{mine['removed']} removed, {mine['wrong']} wrong{beside}"
        best = max([0.99, *(row["precision"] for row in others.values())])
        measured("dedup", f"precision on {name}", mine["precision"], at_least=best, low=low, high=high, note=note)
        beside = "".join(f"; {peer} {row['resolved']:.3f}" for peer, row in others.items())
        note = f"{mine['pairs']} pairs at J >= .8{beside}"
        measured("dedup", f"pairs resolved of {name}", mine["resolved"], at_least=0.97, note=note)
