"""The stage as a whole: selection, layout, rejects, resume, and the artifact it builds."""

import json
import shutil

import blake3
import pyarrow as pa
import pytest

from model.errors import GuardError
from tasks.artifacts.build import RunContext
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.schema import DOCUMENTS, REJECTS
from tasks.artifacts.workspace import Workspace
from tasks.execution.executor import ThisProcess
from tasks.sample import group_reader
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import find_files
from tasks.sample.document_columns import document_id
from tasks.sample.limits import RejectLimits
from tasks.sample.sampler import sample_documents
from tasks.sample.stage import build_sample


def write_lines(path, count, size=20):
    path.write_text("".join(json.dumps({"text": f"{number} " + "x" * size, "id": f"d{number}"}) + "\n"
                            for number in range(count)))  # fmt: skip


def one_source(path, *, id_field=None, budget_tokens=10**9, **fields):
    source = Source(name="s", paths=(str(path),), weight=1, id_field=id_field)
    return SampleConfig(sources=(source,), budget_tokens=budget_tokens, **fields)


def run(config, folder) -> tuple[StageReport, Workspace]:
    folder.mkdir(parents=True, exist_ok=True)
    workspace = Workspace(folder)
    report = sample_documents(find_files(config), config, workspace, ThisProcess())
    RejectLimits(config.max_reject_share).check(report)
    return report, workspace


def table(workspace, name):
    tables = []
    for record in workspace.records():
        if record.table == name:
            with pa.memory_map(str(workspace.file(record.name))) as source:
                tables.append(pa.ipc.open_file(source).read_all())
    return pa.concat_tables(tables)


def digests(workspace):
    return {record.name: record.digest for record in workspace.records()}


def test_documents_carry_id_text_digest_origin_and_kind(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "page.html").write_text("<p>Hallo</p>")
    (tmp_path / "in" / "plain.txt").write_text("Hallo")
    source = Source(name="web", paths=str(tmp_path / "in"), weight=1, language="de")
    report, workspace = run(SampleConfig(sources=(source,), budget_tokens=10**6), tmp_path / "work")
    page, plain = table(workspace, "documents").to_pylist()
    assert page == {
        "doc_id": document_id("web", "page.html", 0, None),
        "piece": 0,
        "source": "web",
        "lang": "de",
        "text": "<p>Hallo</p>",
        "text_digest": blake3.blake3(b"<p>Hallo</p>").digest(length=16),
        "origin": {"path": "page.html", "record": 0, "byte": 0},
        "meta": '{"format":"html"}',
        "text_kind": None,
    }
    assert plain["meta"] is None
    assert table(workspace, "documents").schema.equals(DOCUMENTS)
    assert table(workspace, "rejects").schema.equals(REJECTS)
    assert table(workspace, "ledger").num_rows == 0
    assert "cursor" not in report.facts


def test_ids_do_not_run_together_at_their_borders():
    assert document_id("a", "b/c", 1, None) != document_id("a", "b", 1, None)
    assert document_id("a", "x", 0, "x") != document_id("a", "x", 0, None)
    assert document_id("a", "1", 0, "7") == document_id("a", "2", 5, "7")
    assert len(document_id("a", "b", 0, None)) == 16


def test_a_larger_budget_only_adds_documents(tmp_path):
    write_lines(tmp_path / "a.jsonl", 2000)
    kept = []
    for budget in (1000, 3000):
        config = one_source(tmp_path / "a.jsonl", budget_tokens=budget)
        report, workspace = run(config, tmp_path / f"work{budget}")
        plan = report.facts["mixture_plan"]["s"]
        counts = report.source("s")
        assert counts.documents_in == 2000 == counts.documents_out + counts.not_selected
        assert abs(counts.documents_out / 2000 - plan["rate"]) < 0.05
        kept.append(set(table(workspace, "documents").column("doc_id").to_pylist()))
    assert kept[0] < kept[1]


def test_an_excluded_document_is_as_if_it_were_not_in_its_file_and_the_others_keep_their_ids(tmp_path):
    write_lines(tmp_path / "a.jsonl", 20)
    config = one_source(tmp_path / "a.jsonl", budget_tokens=10**6)
    _, whole = run(config, tmp_path / "whole")
    rows = table(whole, "documents").to_pylist()
    excluded = config.model_copy(update={"exclude_documents": (rows[7]["doc_id"].hex(), "0" * 32)})
    report, workspace = run(excluded, tmp_path / "without")
    assert table(workspace, "documents").to_pylist() == [*rows[:7], *rows[8:]]
    assert report.source("s").not_selected == 1


def test_the_plan_states_targets_and_epochs(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a" * 700)
    (tmp_path / "b.txt").write_bytes(b"b" * 7000)
    sources = tuple(
        Source(name=name, paths=str(tmp_path / f"{name}.txt"), weight=weight) for name, weight in (("a", 1), ("b", 3))
    )
    config = SampleConfig(sources=sources, budget_tokens=400, bytes_per_token=3.5, normalise_weights=True)
    plan = run(config, tmp_path / "work")[0].facts["mixture_plan"]
    assert plan["a"] == {
        "files": 1,
        "bytes": 700,
        "weight": 0.25,
        "target_tokens": 100,
        "available_tokens": 200,
        "rate": 1.0,
        "epochs": 0.5,
        "asked_epochs": 0.5,
        "slack": 2.0,
    }
    assert plan["b"]["rate"] == pytest.approx(300 * 3.5 * 2 / 7000)


def test_limit_caps_the_rate(tmp_path):
    write_lines(tmp_path / "a.jsonl", 3000)
    report, _ = run(one_source(tmp_path / "a.jsonl", limit=0.1), tmp_path / "work")
    assert 200 < report.source("s").documents_out < 400


def test_parts_hold_at_most_part_bytes_of_text_and_keep_the_order(tmp_path):
    write_lines(tmp_path / "a.jsonl", 300, size=100)
    report, workspace = run(one_source(tmp_path / "a.jsonl", part_bytes=2048), tmp_path / "work")
    sizes = []
    for record in workspace.records():
        if record.table == "documents":
            with pa.memory_map(str(workspace.file(record.name))) as source:
                texts = pa.ipc.open_file(source).read_all().column("text").to_pylist()
            sizes.append(sum(len(text) for text in texts))
    assert len(sizes) > 10
    assert max(sizes) <= 2048
    records = [origin["record"] for origin in table(workspace, "documents").column("origin").to_pylist()]
    assert records == list(range(300))
    assert report.source("s").documents_out == 300


@pytest.mark.parametrize("finished_before_the_kill", [1, 4])
def test_a_killed_build_goes_on_to_the_same_bytes(tmp_path, monkeypatch, finished_before_the_kill):
    write_lines(tmp_path / "a.jsonl", 200, size=100)
    with (tmp_path / "a.jsonl").open("a") as stream:
        stream.write("broken\n" + json.dumps({"text": "again", "id": "d3"}) + "\n")
    (tmp_path / "b.txt").write_text("b" * 3000)
    sources = (
        Source(name="a", paths=str(tmp_path / "a.jsonl"), weight=0.5, id_field="id"),
        Source(name="b", paths=str(tmp_path / "b.txt"), weight=0.5),
    )
    config = SampleConfig(sources=sources, budget_tokens=10**9, part_bytes=4096)
    whole, undisturbed = run(config, tmp_path / "undisturbed")

    write_part = group_reader._write_part

    def die_after(workspace, group, number, part):
        if number == finished_before_the_kill:
            raise KeyboardInterrupt
        return write_part(workspace, group, number, part)

    monkeypatch.setattr(group_reader, "_write_part", die_after)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "killed")
    monkeypatch.setattr(group_reader, "_write_part", write_part)
    resumed, workspace = run(config, tmp_path / "killed")
    assert digests(workspace) == digests(undisturbed)
    assert resumed.to_json() == whole.to_json()
    again, _ = run(config, tmp_path / "killed")
    assert again.to_json() == whole.to_json()


def test_a_build_killed_behind_a_part_full_of_rejects_counts_none_twice(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl", 3)
    (tmp_path / "in" / "b.jsonl").mkdir()  # fails again whatever the record from which it is read
    write_lines(tmp_path / "in" / "c.jsonl", 3)
    monkeypatch.setattr(group_reader, "REJECTS_PER_PART", 1)
    config = one_source(f"{tmp_path}/in/*", max_reject_share=0.5)
    _, undisturbed = run(config, tmp_path / "undisturbed")
    write_part = group_reader._write_part

    def die_after_one(workspace, group, number, part):
        if number == 1:
            raise KeyboardInterrupt
        return write_part(workspace, group, number, part)

    monkeypatch.setattr(group_reader, "_write_part", die_after_one)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "killed")
    monkeypatch.setattr(group_reader, "_write_part", write_part)
    resumed, workspace = run(config, tmp_path / "killed")
    assert resumed.source("s").rejected == 1
    assert digests(workspace) == digests(undisturbed)


def test_a_double_id_is_rejected_with_its_place(tmp_path):
    path = tmp_path / "a.jsonl"
    write_lines(path, 200)
    with path.open("a") as stream:
        stream.write(json.dumps({"text": "other text", "id": "d5"}) + "\n")
    report, workspace = run(one_source(path, id_field="id"), tmp_path / "work")
    (reject,) = table(workspace, "rejects").to_pylist()
    assert (reject["record"], reject["reason"], reject["excerpt"]) == (200, "id 'd5' was seen before", "other text")
    assert report.source("s").rejected == 1
    assert report.source("s").documents_out == 200


def test_too_many_rejects_name_the_worst_file(tmp_path):
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "good.jsonl", 90)
    (tmp_path / "in" / "bad.jsonl").write_text("oops\n" * 7)
    (tmp_path / "in" / "slightly.jsonl").write_text("oops\n")
    config = one_source(tmp_path / "in")
    with pytest.raises(
        GuardError, match=r"8 of 98 records \(8\.2%\).*worst file is `bad.jsonl`.*7 rejects.*broken JSON"
    ):
        run(config, tmp_path / "work")
    report, _ = run(config.model_copy(update={"max_reject_share": 0.09}), tmp_path / "work2")
    assert report.source("s").rejected == 8
    report.check_conservation("sample")


def test_a_source_without_one_readable_record_stops_the_stage(tmp_path):
    write_lines(tmp_path / "a.jsonl", 1000)
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    sources = tuple(Source(name=name[0], paths=str(tmp_path / name), weight=0.5) for name in ("a.jsonl", "b.txt"))
    with pytest.raises(GuardError, match="no record of source `b` could be read"):
        run(SampleConfig(sources=sources, budget_tokens=100), tmp_path / "work")


def test_progress_counts_stored_bytes(tmp_path):
    write_lines(tmp_path / "a.jsonl", 50)
    size = (tmp_path / "a.jsonl").stat().st_size
    heard = []
    config = one_source(tmp_path / "a.jsonl")
    (tmp_path / "work").mkdir()
    workspace = Workspace(tmp_path / "work", lambda done, total, unit: heard.append((done, total, unit)))
    sample_documents(find_files(config), config, workspace, ThisProcess())
    assert heard[-1] == (size, size, "bytes")


def test_the_artifact_is_reused_from_another_place_and_rebuilt_when_a_file_changes(tmp_path):
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl", 10)
    context = RunContext(tmp_path / "root", "run")
    first = build_sample(context, one_source(tmp_path / "in"))
    assert first.rows("documents") == 10
    shutil.copytree(tmp_path / "in", tmp_path / "moved")
    moved = build_sample(context, one_source(tmp_path / "moved"))
    assert (moved.reused, moved.identity) == (True, first.identity)
    write_lines(tmp_path / "moved" / "a.jsonl", 11)
    assert not build_sample(context, one_source(tmp_path / "moved")).reused


def test_empty_files_and_folders_are_rejected_and_empty_files_alone_stop_nothing(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / "in" / f"empty{number}.py").write_bytes(b"")
    (tmp_path / "in" / "good.py").write_text("x = 1\n")
    report, workspace = run(one_source(f"{tmp_path}/in/*"), tmp_path / "work")
    assert report.source("s").rejected == 20
    assert set(table(workspace, "rejects").column("reason").to_pylist()) == {"empty file"}
    (tmp_path / "in" / "folder.py").mkdir()
    with pytest.raises(GuardError, match=r"1 of 2 records .* `folder.py` .* Is a directory"):
        run(one_source(f"{tmp_path}/in/*"), tmp_path / "work2")


def test_sound_records_that_are_no_documents_are_counted(tmp_path):
    head = "WARC/1.0\r\nWARC-Type: {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nWARC-Target-URI: http://a/{}\r\n\r\n"
    text = "Plain words."
    records = [
        head.format(kind, len(text), kind) + text + "\r\n\r\n" for kind in ("warcinfo", "conversion", "metadata")
    ]
    (tmp_path / "a.warc").write_text("".join(records), newline="")
    report, workspace = run(one_source(tmp_path / "a.warc"), tmp_path / "work")
    assert report.facts["records_passed_over"] == {
        "s: WARC records of type metadata": 1,
        "s: WARC records of type warcinfo": 1,
    }
    (document,) = table(workspace, "documents").to_pylist()
    assert (document["text"], document["meta"]) == (text, '{"url":"http://a/conversion"}')


def test_bytes_of_text_are_estimated_from_beginnings(tmp_path):
    import gzip

    lines = [json.dumps({"text": f"{number} " + "words " * 50, "more": "x" * 300}) + "\n" for number in range(20_000)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    report, _ = run(one_source(tmp_path / "a.jsonl.gz"), tmp_path / "work")
    assert report.facts["mixture_plan"]["s"]["bytes"] == pytest.approx(report.source("s").bytes_in, rel=0.05)
