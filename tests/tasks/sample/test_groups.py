"""Groups of files are read side by side: the same bytes for any number of workers, and after any kill."""

import json
from pathlib import Path

import pytest

from tasks.artifacts.build import RunContext
from tasks.artifacts.report import StageReport
from tasks.artifacts.workspace import Workspace
from tasks.common.work import Executor
from tasks.execution.executor import ThisProcess, Threads
from tasks.sample import group_reader, sampler
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import find_files
from tasks.sample.groups import group_files
from tasks.sample.mixture import plan_mixture
from tasks.sample.sampler import sample_documents
from tasks.sample.stage import build_sample

FILES = 9
RECORDS = 60


@pytest.fixture
def config(tmp_path: Path) -> SampleConfig:
    """Nine files of records with ids, each of which repeats an id of the file before it, then plain files."""
    for folder in ("lines", "plain", "empty"):
        (tmp_path / folder).mkdir()
    for number in range(FILES):
        ids = [f"{number}-{record}" for record in range(RECORDS)]
        records = [{"text": f"{one} " + "word " * 20, "id": one} for one in ids]
        records.append({"text": f"again in {number}", "id": f"{max(0, number - 1)}-7"})
        broken = "broken\n" if number % 4 == 2 else ""
        text = broken + "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / "lines" / f"{number}.jsonl").write_text(text)
        (tmp_path / "plain" / f"{number}.txt").write_text(f"{number} " + "letter " * 150 * (1 + number % 3))
        (tmp_path / "empty" / f"{number}.txt").write_text("")
    (tmp_path / "empty" / "one.txt").write_text("one")
    sources = (
        Source(name="lines", paths=(str(tmp_path / "lines"),), weight=0.4, id_field="id"),
        Source(name="plain", paths=(str(tmp_path / "plain"),), weight=0.3),
        Source(name="empty", paths=(str(tmp_path / "empty"),), weight=0.3),
    )
    return SampleConfig(sources=sources, budget_tokens=10**9, part_bytes=4096, max_reject_share=1)


def run(config: SampleConfig, folder: Path, executor: Executor) -> tuple[StageReport, dict[str, str]]:
    folder.mkdir(exist_ok=True)
    workspace = Workspace(folder)
    report = sample_documents(find_files(config), config, workspace, executor)
    report.check_conservation("sample")
    return report, {record.name: record.digest for record in workspace.records()}


def test_any_number_of_workers_makes_the_same_bytes(config: SampleConfig, tmp_path: Path) -> None:
    expected, digests = run(config, tmp_path / "one", ThisProcess())
    assert len(digests) > 3 * FILES
    for executor in (Threads(2), Threads(4)):
        report, found = run(config, tmp_path / str(executor), executor)
        assert found == digests
        assert json.dumps(report.to_json(), sort_keys=True) == json.dumps(expected.to_json(), sort_keys=True)


def test_the_stage_reads_with_the_workers_of_its_settings(config: SampleConfig, tmp_path: Path) -> None:
    one, two = (
        build_sample(RunContext(tmp_path / str(count), "run"), config.model_copy(update={"workers": count}))
        for count in (1, 2)
    )
    assert (two.outcome, two.identity, two.content) == ("built", one.identity, one.content)


def test_an_id_of_an_earlier_group_is_rejected_as_one_pass_would(config: SampleConfig, tmp_path: Path) -> None:
    groups = group_files(listings := find_files(config), plan_mixture(config, listings), config.part_bytes)
    assert len(groups) > FILES
    report, _ = run(config, tmp_path / "work", ThisProcess())
    counts = report.source("lines")
    assert (counts.documents_in, counts.documents_out) == (FILES * (RECORDS + 1) + 2, FILES * RECORDS)
    assert counts.rejected == FILES + 2
    named = {file["path"]: (file["records"], file["reason"]) for file in report.facts["rejected_files"]["lines"]}
    assert named["2.jsonl"][0] == 2
    assert named["1.jsonl"] == (1, "id '0-7' was seen before")


def test_an_article_that_two_exports_of_a_wiki_hold_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        pages = "".join(
            f"<page><title>T</title><id>{article}</id><revision><text>{'word ' * 900}</text></revision></page>"
            for article in (number, 7)
        )
        (tmp_path / "in" / f"{number}.xml").write_text(f"<mediawiki>{pages}</mediawiki>")
    source = Source(name="wiki", paths=(str(tmp_path / "in/*.xml"),), weight=1, format="mediawiki")
    config = SampleConfig(sources=(source,), budget_tokens=10**9, part_bytes=4096, max_reject_share=1)
    groups = group_files(listings := find_files(config), plan_mixture(config, listings), config.part_bytes)
    assert len(groups) == 2
    report, _ = run(config, tmp_path / "work", ThisProcess())
    assert (report.source("wiki").documents_out, report.source("wiki").rejected) == (3, 1)
    assert report.facts["rejected_files"]["wiki"] == [
        {"path": "1.xml", "records": 1, "reason": "id '7' was seen before"}
    ]


@pytest.mark.parametrize("executor", [ThisProcess(), Threads(3)], ids=str)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.75, 0.95])
def test_a_killed_build_goes_on_to_the_same_bytes(
    config: SampleConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    executor: Executor,
    share: float,
) -> None:
    """Also between the two passes: half of the groups hold an id of an earlier one, and are read twice."""
    write, written, most = group_reader._write_part, [0], [10**9]

    def die_after(workspace, group, number, part):
        if written[0] >= most[0]:
            raise KeyboardInterrupt
        written[0] += 1
        return write(workspace, group, number, part)

    monkeypatch.setattr(group_reader, "_write_part", die_after)
    whole, digests = run(config, tmp_path / "undisturbed", ThisProcess())
    most[0], written[0] = int(share * written[0]), 0
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "killed", executor)
    monkeypatch.setattr(group_reader, "_write_part", write)
    resumed, found = run(config, tmp_path / "killed", executor)
    assert found == digests
    assert resumed.to_json() == whole.to_json()


def test_a_build_killed_while_it_reads_a_group_again_finds_all_repeated_ids(
    config: SampleConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file now begins with a repeated id too, so that its first part has one and its last part another."""
    for number in range(1, FILES):
        path = tmp_path / "lines" / f"{number}.jsonl"
        path.write_text(json.dumps({"text": "first " * 9, "id": f"{number - 1}-3"}) + "\n" + path.read_text())
    write, again = group_reader._write_part, [0]

    def die_after_one_part_of_the_second_reading(workspace, group, number, part):
        if again[0]:
            raise KeyboardInterrupt
        # Repeated ids within group 0 are found in the first reading.
        again[0] = group > 0 and any("seen before" in row["reason"] for row in part.rejects)
        return write(workspace, group, number, part)

    whole, digests = run(config, tmp_path / "undisturbed", ThisProcess())
    monkeypatch.setattr(group_reader, "_write_part", die_after_one_part_of_the_second_reading)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "killed", ThisProcess())
    monkeypatch.setattr(group_reader, "_write_part", write)
    resumed, found = run(config, tmp_path / "killed", ThisProcess())
    assert found == digests
    assert resumed.to_json() == whole.to_json()


def test_a_part_that_does_not_follow_the_one_before_it_is_written_again(config: SampleConfig, tmp_path: Path) -> None:
    whole, digests = run(config, tmp_path / "undisturbed", ThisProcess())
    run(config.model_copy(update={"part_bytes": 3000}), tmp_path / "other", ThisProcess())
    other = Workspace(tmp_path / "other")
    for unit in sorted((tmp_path / "other" / "units").iterdir()):
        if unit.stem.endswith("-00000"):
            other.discard(unit.stem)
    mixed, found = run(config, tmp_path / "other", ThisProcess())
    assert {name: found[name] for name in digests} == digests
    assert mixed.to_json() == whole.to_json()


def test_groups_are_of_about_a_part_and_keep_the_order(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02d}.txt").write_text("x" * (1000 if number != 11 else 50_000))
    config = SampleConfig(sources=(Source(name="s", paths=(str(tmp_path),), weight=1),), budget_tokens=10**9)
    listings = find_files(config)
    groups = group_files(listings, plan_mixture(config, listings), 4096)
    names = [file.relative for group in groups for _, file in group.files]
    assert names == [file.relative for file in listings[0].files]
    # Three files of 1,000 bytes are within 7/8 of 4,096; the large one is alone.
    assert [len(group.files) for group in groups] == [3, 3, 3, 2, 1, 3, 3, 3, 3, 3, 3]
    few = config.model_copy(update={"limit": 0.01})
    groups = group_files(listings, plan_mixture(few, listings), 4096)
    assert [len(group.files) for group in groups] == [16, 14]


def test_progress_counts_all_bytes_with_several_workers(config: SampleConfig, tmp_path: Path) -> None:
    heard: list[tuple[int, int | None, str]] = []
    (tmp_path / "work").mkdir()
    workspace = Workspace(tmp_path / "work", lambda done, total, unit: heard.append((done, total, unit)))
    sampler.sample_documents(find_files(config), config, workspace, ThisProcess())
    size = sum(listing.bytes for listing in find_files(config))
    assert (size, size, "bytes") in heard
    assert all(done <= (total or 0) for done, total, _ in heard)
