"""Limits only end a stage: early where nothing could help, at the same part for any number of workers, and one that is
reused too. Raised, the stage goes on from the parts that are finished."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tasks.clean.pipeline
import tasks.dedup.pipeline
import tasks.sample.group_reader
from model.errors import GuardError, Numerics
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.limits import MIN_DOCUMENTS, DropRateLimits
from tasks.artifacts.report import StageReport
from tasks.clean.config import CleanConfig
from tasks.clean.stage import build_clean
from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import build_dedup
from tasks.execution.machines import Machines
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample
from tasks.train.limits import RollbackLimits

PARTS, SHORT, LONG = (
    6,
    "short",
    "The furnace was lit at dawn and the iron ran by noon, as it had for forty years. " * 12,
)
DROPPED = (10, 30, 20, 25, 5, 5)
"""Of the 30 documents of each part; 95 of 180 in all, and 85 of them in the first four parts."""


@pytest.fixture
def documents(make_documents: Any) -> Artifact:
    return make_documents(
        [
            [("web", f"{LONG} {part} {row}" if row >= dropped else SHORT) for row in range(30)]
            for part, dropped in enumerate(DROPPED)
        ]
    )


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Counter[int]:
    """How often a stage's function of parts was called, by the part's number."""
    calls: Counter[int] = Counter()
    function = getattr(module, name)

    def counting(config: Any, table: Any, index: int, *rest: Any, **more: Any) -> Any:
        calls[index] += 1
        return function(config, table, index, *rest, **more)

    monkeypatch.setattr(module, name, counting)
    return calls


def clean(workers: int = 1, **limits: Any) -> CleanConfig:
    return CleanConfig(rules=("gopher_words_min",), workers=workers, machines=Machines(executor="threads"), **limits)


@pytest.mark.parametrize("workers", [1, 2, 6])
def test_clean_ends_at_the_part_after_which_nothing_could_help(
    context: RunContext, documents: Artifact, workers: int
) -> None:
    with pytest.raises(GuardError) as reported:
        build_clean(context, documents, clean(workers, wipe_out_limit=0.45))
    assert str(reported.value).startswith(
        "clean: 85 of 180 documents (47.2%) of source `web` were dropped among the first 120, and the others were not"
        " processed: the limit is 45%. Most were dropped by `gopher_words_min` (85)"
    )
    assert not (context.root / "artifacts" / "clean").exists()


def test_what_only_the_end_decides_is_decided_there(context: RunContext, documents: Artifact) -> None:
    with pytest.raises(
        GuardError, match=r"clean: 95 of 180 documents \(52\.8%\) .* would be dropped; the limit is 52%"
    ):
        build_clean(context, documents, clean(wipe_out_limit=0.525))
    assert build_clean(context, documents, clean(wipe_out_limit=0.53)).report.total().documents_out == 85


@pytest.mark.parametrize("override", [{"web": 1.0}, {"web": 0.54}], ids=str)
def test_raised_as_advised_clean_goes_on_from_what_is_finished_and_makes_nothing_twice(
    context: RunContext, documents: Artifact, monkeypatch: pytest.MonkeyPatch, override: dict[str, float]
) -> None:
    calls = counted(monkeypatch, tasks.clean.pipeline, "clean_part")
    with pytest.raises(GuardError, match=r"set \[clean.wipe_out_overrides\] web = 1.0"):
        build_clean(context, documents, clean(wipe_out_limit=0.45))
    assert calls == Counter(range(4))
    built = build_clean(context, documents, clean(wipe_out_limit=0.45, wipe_out_overrides=override))
    assert calls == Counter(range(PARTS))
    undisturbed = replace(context, root=context.root.with_name("undisturbed"))
    assert built.content == build_clean(undisturbed, documents, clean(wipe_out_limit=1.0)).content


def test_a_lowered_limit_holds_for_what_is_reused(context: RunContext, documents: Artifact) -> None:
    built = build_clean(context, documents, clean())
    low = clean(wipe_out_limit=0.5)
    for where in (context, replace(context, dry=True), replace(context, buildable=frozenset())):
        with pytest.raises(
            GuardError, match=r"clean: 95 of 180 documents \(52\.8%\) .* would be dropped; the limit is 50%"
        ):
            build_clean(where, documents, low)
    assert build_clean(replace(context, dry=True, guessing=True), documents, low).reused
    again = build_clean(context, documents, clean(wipe_out_limit=0.6))
    assert (again.outcome, again.identity) == ("reused", built.identity)


def test_dedup_ends_early_goes_on_and_refuses_what_is_reused(
    context: RunContext, make_documents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = make_documents([[("copies", LONG)] * 40 for _ in range(4)])
    calls = counted(monkeypatch, tasks.dedup.pipeline, "filter_part")
    quiet = DedupConfig(planted_pairs=0, threads=1)
    with pytest.raises(
        GuardError, match=r"dedup: 119 of 160 documents \(74\.4%\) .* among the first 120.*limit is 70%"
    ):
        build_dedup(context, documents, quiet.model_copy(update={"wipe_out_limit": 0.7}))
    assert calls == Counter(range(3))
    allowed = quiet.model_copy(update={"wipe_out_limit": 0.7, "wipe_out_overrides": {"copies": 1.0}})
    assert build_dedup(context, documents, allowed).report.total().documents_out == 1
    assert calls == Counter(range(4))
    with pytest.raises(GuardError, match=r"159 of 160 documents \(99\.4%\) .* would be dropped; the limit is 90%"):
        build_dedup(context, documents, quiet)


def lines(path: Path, texts: Sequence[str | None]) -> str:
    path.write_text("".join("oops\n" if text is None else json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def sample(folder: Path, share: float, **texts: Sequence[str | None]) -> SampleConfig:
    return SampleConfig(
        sources=tuple(
            Source(name=name, paths=(lines(folder / f"{name}.jsonl", rows),), weight=1 / len(texts))
            for name, rows in texts.items()
        ),
        budget_tokens=10**9,
        part_bytes=1024,
        max_reject_share=share,
    )


def test_sample_ends_once_a_source_without_a_readable_record_is_read(context: RunContext, tmp_path: Path) -> None:
    good: list[str | None] = [LONG] * 20
    config = sample(tmp_path, 1.0, bad=[None] * 3, good=good)
    with pytest.raises(GuardError, match=r"no record of source `bad` could be read.*`bad.jsonl`.*with 3 rejects.*JSON"):
        build_sample(context, config)
    (work,) = (context.root / "work").iterdir()
    assert [unit.name for unit in (work / "units").iterdir()] == ["00000-00000.json"], "of 21 parts"


def test_sample_judges_the_share_at_its_end_and_of_what_is_reused(
    context: RunContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str | None] = [LONG, LONG, LONG, None] * 5
    parts: list[int] = []
    write = tasks.sample.group_reader._write_part
    monkeypatch.setattr(
        tasks.sample.group_reader,
        "_write_part",
        lambda workspace, group, number, part: parts.append(number) or write(workspace, group, number, part),
    )
    low, high = (sample(tmp_path, share, s=texts) for share in (0.24, 0.25))
    with pytest.raises(GuardError, match=r"5 of 20 records \(25\.0%\) were rejected, and .* allows 24\.0%.*5 rejects"):
        build_sample(context, low)
    made = len(parts)
    assert made > 2
    built = build_sample(context, high)
    assert (built.report.total().documents_out, built.report.facts["unreadable_records"]) == (15, {"s": 5})
    assert len(parts) == made, "every part was finished"
    with pytest.raises(GuardError, match=r"5 of 20 records \(25\.0%\) were rejected, and .* allows 24\.0%.*5 rejects"):
        build_sample(context, low)
    assert build_sample(context, high).reused


def report_of(documents_in: int, documents_out: int, dropped: int) -> StageReport:
    report = StageReport()
    counts = report.source("books")
    counts.documents_in, counts.documents_out, counts.dropped = documents_in, documents_out, Counter(short=dropped)
    return report


@pytest.fixture
def limits(make_documents: Callable[..., Artifact]) -> Callable[..., DropRateLimits]:
    """Limits of a stage that reads `coming` documents of `books`."""

    def make(coming: int, limit: float = 0.9, **overrides: float) -> DropRateLimits:
        return DropRateLimits("clean", limit, overrides, make_documents([[("books", "text")] * coming]))

    return make


def test_the_wipe_out_guard_looks_from_a_hundred_documents_on(limits: Callable[..., DropRateLimits]) -> None:
    limits(99).check(report_of(99, 1, 98))
    limits(100).check(report_of(100, 10, 90))
    with pytest.raises(GuardError, match=r"91 of 100 documents \(91.0%\) of source `books`.*`short`"):
        limits(100).check(report_of(100, 9, 91))
    limits(100, books=0.95).check(report_of(100, 9, 91))


def test_the_docs_name_the_limits() -> None:
    named = f"drop more than {CleanConfig().wipe_out_limit:.0%} of a source of {MIN_DOCUMENTS} documents or more"
    assert DedupConfig().wipe_out_limit == CleanConfig().wipe_out_limit
    for page in ("recipes.md", "ledger.md"):
        text = " ".join((Path(__file__).parents[3] / "docs" / page).read_text("utf-8").split())
        assert named in text.replace("drops", "drop")


def test_dropping_every_document_is_stopped_however_few_they_are(limits: Callable[..., DropRateLimits]) -> None:
    limits(0).check(report_of(0, 0, 0))
    with pytest.raises(GuardError, match=r"all 5 documents would be dropped, most by `short` \(5\)"):
        limits(5).check(report_of(5, 0, 5))
    limits(5, books=1.0).check(report_of(5, 0, 5))


def test_parts_end_a_stage_only_where_its_end_would(limits: Callable[..., DropRateLimits]) -> None:
    """For every number dropped so far of 100, all the others may still stay."""
    one = limits(100, 0.9)
    for dropped in range(101):
        ends = _raises(one.check_so_far, report_of(dropped, 0, dropped))
        best = _raises(one.check, report_of(100, 100 - dropped, dropped))
        assert ends == best == (dropped > 90)


def _raises(check: Callable[[StageReport], None], report: StageReport) -> bool:
    try:
        check(report)
    except GuardError:
        return True
    return False


@pytest.mark.parametrize(
    ("by", "most"), [([], 0), (["guard"], 1), (["guard", "guard", "hand", "guard"], 2), (["hand", "hand"], 0)], ids=str
)
def test_a_reused_training_went_back_no_more_often_than_its_guard_may(by: list[str], most: int) -> None:
    report = StageReport()
    report.facts = {"training": {}, "exact": not by, "decisions": [{"by": one} for one in by]}
    RollbackLimits(most).check(report)
    if most:
        with pytest.raises(Numerics, match=f"rolled back {most} times, where train.guard.most_rollbacks is {most - 1}"):
            RollbackLimits(most - 1).check(report)
