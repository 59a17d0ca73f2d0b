"""The decontaminate stage as a whole: what is cut, dropped, flagged, held out, and what the tables say."""

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest

from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.artifacts.tables.schema import DOCUMENTS, ITEMS, LEAKS, LEDGER
from tasks.artifacts.workspace import Workspace
from tasks.decontaminate import benchmark_readers as records
from tasks.decontaminate import pipeline as decontaminate_module
from tasks.decontaminate.benchmarks import GENERIC
from tasks.decontaminate.config import Benchmark, DecontaminateConfig
from tasks.decontaminate.heldout import choose_heldout, draws_table, read_draws
from tasks.decontaminate.stage import build_decontaminate

MakeDocuments = Callable[[Sequence[Sequence[tuple[str, str]]]], Artifact]
ALL_IN = DecontaminateConfig(heldout_share=0.0)


def prose(seed: int, words: int = 200) -> str:
    generator = random.Random(seed)
    return " ".join(f"{generator.choice('bcdfg')}{generator.randrange(9000)}" for _ in range(words))


def chinese(seed: int, characters: int) -> str:
    generator = random.Random(seed)
    return "".join(chr(generator.randrange(0x4E00, 0x9000)) for _ in range(characters))


def quiz(folder: Path, *match_texts: str, name: str = "quiz") -> Benchmark:
    path = folder / f"{name}.jsonl"
    records = [
        {"id": f"q{number}", "question": text, "answer": "x", "match_text": text}
        for number, text in enumerate(match_texts)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return Benchmark(name=name, path=path)


def config_for(*benchmarks: Benchmark, **changes: Any) -> DecontaminateConfig:
    return ALL_IN.model_copy(update={"benchmarks": benchmarks, **changes})


def leaks_of(artifact: Artifact) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in artifact.table("leaks").to_pylist():
        found.setdefault(row["item_id"], []).append(row)
    return found


def states(artifact: Artifact) -> dict[str, str]:
    return {item: rows[0]["state"] for item, rows in leaks_of(artifact).items()}


def test_held_out_documents_of_another_seed_cannot_be_kept(context: RunContext, make_documents: MakeDocuments) -> None:
    documents = make_documents([[("web", prose(seed)) for seed in range(40)]])
    first = build_decontaminate(context, documents, DecontaminateConfig(heldout_share=0.1))
    kept = DecontaminateConfig(heldout_share=0.2, keep_heldout=str(first.path))
    again = build_decontaminate(context, documents, kept)
    assert again.table("heldout") == first.table("heldout")
    with pytest.raises(RecipeError, match="made with seed = 0, and this recipe has 1"):
        build_decontaminate(context, documents, kept.model_copy(update={"seed": 1}))


def test_a_leak_is_cut_with_its_window_and_every_byte_is_accounted_for(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    item = prose(1, 30)
    text = f"{prose(2)} {item.upper()}! {prose(3)}"
    documents = make_documents([[("web", prose(4)), ("web", text)]])
    result = build_decontaminate(context, documents, config_for(quiz(tmp_path, item, prose(9, 20), "too short")))
    start = text.index(item.upper())
    end = start + len(item)
    # The window is 200 characters and what is left of the words at its ends.
    opened, closed = text.rindex(" ", 0, start - 200) + 1, text.index(" ", end + 200)
    (leak,) = leaks_of(result)["q0"]
    assert (leak["state"], leak["form"], leak["start"], leak["end"]) == ("leaked", "verbatim", start, end)
    assert (leak["matched"], leak["total"], leak["piece"], leak["remains"]) == (30, 30, 0, 0)
    assert states(result) == {"q0": "leaked", "q1": "clean", "q2": "unmatchable"}
    rows = result.table("documents").to_pylist()
    assert [(row["piece"], row["text"]) for row in rows] == [
        (0, prose(4)), (0, text[:opened]), (1, text[closed:])
    ]  # fmt: skip
    for row in rows:
        assert row["text_digest"] == blake3.blake3(row["text"].encode()).digest(length=16)
    (cut,) = result.table("ledger").to_pylist()
    assert (cut["action"], cut["rule"], cut["doc_id"]) == ("cut", "whole_item", leak["doc_id"])
    assert json.loads(cut["evidence"]) == {
        "benchmark": "quiz", "item_id": "q0", "start": opened, "end": closed
    }  # fmt: skip
    assert cut["bytes_in"] - cut["bytes_out"] == closed - opened
    counts = result.report.source("web")
    assert (counts.documents_out, counts.pieces_out, counts.edited["cut"]) == (2, 3, 1)
    assert counts.bytes_out == sum(len(row["text"]) for row in rows)
    assert result.report.facts["benchmarks"]["quiz"] == {
        "items": 3, "leaked": 1, "clean": 1, "unmatchable": 1, "remains": 0, "visible": 0.6667
    }  # fmt: skip


def test_the_tables_have_their_schemas(tmp_path: Path, context: RunContext, make_documents: MakeDocuments) -> None:
    documents = make_documents([[("web", prose(1) + prose(2))], []])
    result = build_decontaminate(context, documents, config_for(quiz(tmp_path, prose(1, 40)), heldout_share=0.5))
    assert result.table("documents").schema.equals(DOCUMENTS)
    assert result.table("heldout").schema.equals(DOCUMENTS)
    assert result.table("ledger").schema.equals(LEDGER)
    assert result.table("items").schema.equals(ITEMS)
    assert result.table("leaks").schema.equals(LEAKS)
    names = {record.name for record in result.records}
    assert {"items.arrow", "leaks.arrow", "heldout-00000.arrow", "heldout-00001.arrow"} <= names


def test_output_of_cut_holds_no_leak_when_scanned_again(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    items = [prose(100 + number, 25) for number in range(12)]
    generator = random.Random(0)
    texts = []
    for number in range(40):
        parts = [prose(number, 80)]
        for item in generator.sample(items, number % 4):
            parts += [item, prose(1000 + number, generator.randrange(20, 120))]
        texts.append(" ".join(parts))
    config = config_for(quiz(tmp_path, *items))
    first = build_decontaminate(context, make_documents([[("web", text) for text in texts]]), config)
    kept = first.table("documents").column("text").to_pylist()
    again = build_decontaminate(context, make_documents([[("web", text) for text in kept]]), config)
    assert set(states(first).values()) == {"leaked"}
    assert set(states(again).values()) == {"clean"}
    assert again.table("documents").column("text").to_pylist() == kept
    for row in first.table("ledger").to_pylist():
        assert row["bytes_in"] > row["bytes_out"] >= 0


@pytest.mark.parametrize("mode", ["drop", "flag"])
def test_drop_removes_the_document_and_flag_leaves_it(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments, mode: str
) -> None:
    text = f"{prose(2)} {prose(1, 30)} {prose(3)}"
    documents = make_documents([[("web", text), ("web", prose(4))]])
    result = build_decontaminate(context, documents, config_for(quiz(tmp_path, prose(1, 30)), mode=mode))
    kept = result.table("documents").column("text").to_pylist()
    (leak,) = leaks_of(result)["q0"]
    if mode == "flag":
        assert kept == [text, prose(4)]
        assert leak["remains"]
        assert result.report.facts["benchmarks"]["quiz"]["remains"] == 1
    else:
        assert kept == [prose(4)]
        assert result.report.source("web").dropped == {"whole_item": 1}
        (row,) = result.table("ledger").to_pylist()
        assert (row["action"], row["bytes_in"], row["bytes_out"]) == ("drop", len(text), 0)


def test_a_document_without_a_piece_left_and_one_in_too_many_pieces_are_dropped(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    items = [prose(100 + number, 20) for number in range(12)]
    shredded = " ".join(f"{item} {prose(number, 200)}" for number, item in enumerate(items))
    documents = make_documents([[("web", items[0]), ("web", shredded)]])
    result = build_decontaminate(context, documents, config_for(quiz(tmp_path, *items)))
    assert result.report.source("web").dropped == {"no_piece_left": 1, "too_many_pieces": 1}
    assert result.rows("documents") == 0


def test_short_items_match_as_a_whole_at_word_borders(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    whole = "What is the largest lake in southern Finland?"
    documents = make_documents([[("web", f"{prose(1)} what IS the -- largest\nlake in southern finland {prose(2)}")]])
    result = build_decontaminate(
        context, documents, config_for(quiz(tmp_path, whole, whole.replace("Finland", "Finlanders")))
    )
    (leak,) = leaks_of(result)["q0"]
    assert (leak["form"], leak["matched"], leak["total"]) == ("verbatim", 8, 8)
    assert states(result)["q1"] == "clean"
    assert result.table("ledger").column("rule").to_pylist() == ["whole_item"]


def test_chinese_is_a_leak_from_forty_characters_or_half_of_the_item(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    item = chinese(1, 200)
    brief = chinese(2, 30)
    documents = make_documents(
        [[("a", chinese(3, 300) + item[50:80] + chinese(4, 300)), ("b", chinese(5, 300) + brief[:16])]]
    )
    below = build_decontaminate(context, documents, config_for(quiz(tmp_path, item, brief)))
    assert states(below) == {"q0": "clean", "q1": "leaked"}
    longer = make_documents([[("a", chinese(3, 300) + item[50:92] + chinese(4, 300))]])
    result = build_decontaminate(context, longer, config_for(quiz(tmp_path, item, brief)))
    assert states(result) == {"q0": "leaked", "q1": "clean"}
    (leak,) = leaks_of(result)["q0"]
    assert leak["end"] - leak["start"] == 42 * 3


def passage_and_question(folder: Path, passage: str, question: str) -> Benchmark:
    path = folder / "reading.jsonl"
    record = {"id": "q0", "passage": passage, "question": question, "answer": "x"}
    path.write_text(json.dumps({**record, "match_text": f"{passage} {question}"}) + "\n")
    return Benchmark(name="reading", path=path)


def test_a_question_without_its_passage_is_a_leak_and_so_is_a_passage_without_its_question(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    passage, question = prose(1, 30), "Which of the two ladles cooled first?"
    benchmark = passage_and_question(tmp_path, passage, question)
    alone = make_documents([[("web", f"{prose(2)} {question} {prose(3)}"), ("web", f"{prose(4)} {passage}")]])
    leaks = leaks_of(build_decontaminate(context, alone, config_for(benchmark)))["q0"]
    matched = [(leak["form"], leak["matched"], leak["total"]) for leak in leaks]
    assert matched == [("verbatim", 7, 7), ("verbatim", 30, 30)]
    both = make_documents([[("web", f"{prose(2)} {passage} {question} {prose(3)}")]])
    (leak,) = leaks_of(build_decontaminate(context, both, config_for(benchmark)))["q0"]
    assert (leak["form"], leak["matched"]) == ("verbatim", 37)


def test_half_of_a_chinese_question_alone_is_no_leak_and_most_of_it_is(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    question = chinese(2, 26)
    config = config_for(passage_and_question(tmp_path, chinese(1, 200), question))
    for characters, state in ((13, "clean"), (20, "clean"), (21, "leaked"), (26, "leaked")):
        documents = make_documents([[("a", chinese(3, 300) + question[:characters] + chinese(4, 300))]])
        assert states(build_decontaminate(context, documents, config)) == {"q0": state}


def test_forty_chinese_characters_count_when_contiguous_and_not_when_scattered(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    item = chinese(1, 300)
    names = [item[start : start + 15] for start in (0, 60, 120)]
    config = config_for(quiz(tmp_path, item))
    strewn = make_documents([[("a", "".join(name + chinese(9, 100) for name in names))]])
    assert states(build_decontaminate(context, strewn, config)) == {"q0": "clean"}
    together = make_documents([[("a", chinese(8, 300) + "".join(name + chinese(9, 5) for name in names))]])
    assert states(build_decontaminate(context, together, config)) == {"q0": "leaked"}


def test_a_short_question_of_many_items_is_the_template_of_its_benchmark(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    question = "Which of these sentences is well formed?"
    path = tmp_path / "forms.jsonl"
    records = [{"id": str(n), "passage": prose(100 + n, 20), "question": question, "answer": "x"} for n in range(21)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = config_for(Benchmark(name="forms", path=path))
    documents = make_documents([[("web", f"{prose(1)} {question} {prose(2)}")]])
    result = build_decontaminate(context, documents, config)
    assert set(states(result).values()) == {"clean"}
    listed = result.report.facts["common_ngrams"]
    assert {(entry["text"], entry["why"]) for entry in listed} == {
        ("which of these sentences is", "template"),
        ("of these sentences is well", "template"),
        ("these sentences is well formed", "template"),
    }


def test_common_ngrams_are_no_evidence_but_a_full_item_is_however_often_it_was_copied(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    licence, passage = prose(1, 20), prose(2, 40)
    partly = f"{licence} {prose(3, 60)}"
    texts = [f"{prose(10 + number)} {licence} {prose(90 + number)}" for number in range(15)]
    texts += [f"{prose(200 + number)} {passage} {prose(300 + number)}" for number in range(15)]
    result = build_decontaminate(
        context, make_documents([[("web", text) for text in texts]]), config_for(quiz(tmp_path, partly, passage))
    )
    assert states(result) == {"q0": "clean", "q1": "leaked"}
    assert len(leaks_of(result)["q1"]) == 15
    listed = result.report.facts["common_ngrams"]
    assert {" ".join(licence.split()[:5])} <= {entry["text"] for entry in listed}
    assert all(entry["documents"] == 15 for entry in listed)


def test_a_common_passage_far_from_the_leak_is_left_alone(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    licence, own = prose(1, 20), prose(2, 30)
    leaked = f"{licence} {prose(3)} {own} {prose(4)}"
    texts = [leaked, *(f"{prose(10 + number)} {licence}" for number in range(15))]
    item = f"{licence} {own} {prose(5, 60)}"
    result = build_decontaminate(
        context, make_documents([[("web", text) for text in texts]]), config_for(quiz(tmp_path, item))
    )
    (leak,) = leaks_of(result)["q0"]
    assert leaked[leak["start"] : leak["end"]] == own
    assert leak["form"] == "ngram"


def test_a_short_item_in_many_documents_is_a_leak_in_each_though_its_ngrams_are_common(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    short = "What is the largest lake in southern Finland?"
    parts = [[("web", f"{prose(9 * part + number)} {short}") for number in range(9)] for part in range(2)]
    documents = make_documents(parts)
    result = build_decontaminate(context, documents, config_for(quiz(tmp_path, short)))
    leaks = leaks_of(result)["q0"]
    assert [leak["doc_id"] for leak in leaks] == documents.table("documents").column("doc_id").to_pylist()
    assert [leak["start"] for leak in leaks] == [len(text) - len(short) for part in parts for _, text in part]
    assert {entry["documents"] for entry in result.report.facts["common_ngrams"]} == {18}


def held_out_texts(artifact: Artifact) -> list[str]:
    return artifact.table("heldout").column("text").to_pylist()


def test_held_out_documents_leave_the_training_text_and_are_recorded(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    parts = [[("web", prose(part * 100 + i, 30)) for i in range(100)] for part in range(3)]
    documents = make_documents(parts)
    result = build_decontaminate(context, documents, DecontaminateConfig(heldout_share=0.1))
    held, kept = held_out_texts(result), result.table("documents").column("text").to_pylist()
    assert 12 <= len(held) <= 50
    assert sorted(held + kept) == sorted(text for part in parts for _, text in part)
    counts = result.report.source("web")
    assert (counts.held_out, counts.documents_out) == (len(held), len(kept))
    rows = result.table("ledger").to_pylist()
    assert {row["action"] for row in rows} == {"hold_out"}
    assert sorted(row["doc_id"] for row in rows) == sorted(result.table("heldout").column("doc_id").to_pylist())
    larger = build_decontaminate(context, documents, DecontaminateConfig(heldout_share=0.15))
    assert set(held) < set(held_out_texts(larger))


def test_a_leaked_document_is_never_held_out(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    items = [prose(500 + number, 20) for number in range(40)]
    texts = [f"{prose(number)} {items[number]} {prose(700 + number)}" for number in range(40)]
    texts += [prose(100 + number) for number in range(40)]
    config = config_for(quiz(tmp_path, *items), heldout_share=0.5, heldout_max_documents=100)
    result = build_decontaminate(context, make_documents([[("web", text) for text in texts]]), config)
    assert 8 <= len(held_out_texts(result)) <= 16
    assert set(held_out_texts(result)) <= set(texts[40:])


def test_small_sources_give_a_few_documents_and_never_more_than_a_fifth() -> None:
    def chosen(documents: int, **changes: Any) -> int:
        ids = np.random.default_rng(1).integers(0, 256, (documents, 16), np.uint8)
        config = DecontaminateConfig(heldout_share=0.02, **changes)
        sizes = np.full(documents, 100)
        return choose_heldout(ids, sizes, "web", np.ones(documents, np.bool_), config)[0].size

    assert [chosen(count) for count in (0, 1, 4, 5, 12, 30, 100)] == [0, 0, 0, 1, 2, 4, 4]
    assert 20 <= chosen(2000) <= 60
    assert chosen(2000, heldout_max_documents=7) == 7
    assert chosen(2000, heldout_max_bytes=1000) == 10


def test_a_kept_draw_holds_out_the_same_documents_where_others_are_gone() -> None:
    """Without a kept draw a removed held-out document is replaced by one that was read in training."""
    rng = np.random.default_rng(1)
    ids, sizes = rng.integers(0, 256, (500, 16), np.uint8), rng.integers(50, 400, 500)
    config = DecontaminateConfig(heldout_share=0.1, heldout_max_bytes=4000)
    everything = np.ones(500, np.bool_)
    first, draw = choose_heldout(ids, sizes, "web", everything, config)
    assert draw.skipped, "a document that did not fit any more, before one that did"
    for gone in (int(first[0]), int(np.setdiff1d(np.arange(500), first)[3])):
        left = np.delete(np.arange(500), gone)
        mine = ids[left], sizes[left], "web", everything[left], config
        kept, same = choose_heldout(*mine, draw)
        assert same == draw
        assert set(left[kept]) == set(first) - {gone}
    assert read_draws(draws_table([draw])) == {"web": draw}


def test_the_same_bytes_for_any_number_of_workers_and_after_a_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_documents: MakeDocuments
) -> None:
    items = [prose(500 + number, 20) for number in range(5)]
    parts = [
        [("web", f"{prose(100 * part + i)} {items[part]} {prose(i + 7000)}") for i in range(5)] for part in range(5)
    ]
    documents = make_documents(parts)
    contents = []
    for workers in (1, 3):
        run = RunContext(tmp_path / f"root{workers}", "run")
        config = config_for(quiz(tmp_path, *items), workers=workers, heldout_share=0.1)
        contents.append(build_decontaminate(run, documents, config).content)

    class PowerCutError(Exception):
        pass

    plain = Workspace.finished

    def finished(self: Workspace, unit: str) -> Any:
        if unit == "00003":
            raise PowerCutError
        return plain(self, unit)

    broken = RunContext(tmp_path / "broken", "run")
    config = config_for(quiz(tmp_path, *items), workers=1, heldout_share=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "finished", finished)
        with pytest.raises(PowerCutError):
            build_decontaminate(broken, documents, config)
    contents.append(build_decontaminate(broken, documents, config).content)
    assert len(set(contents)) == 1


def test_benchmarks_are_parents_by_content(tmp_path: Path, context: RunContext, make_documents: MakeDocuments) -> None:
    documents = make_documents([[("web", prose(1))]])
    (tmp_path / "elsewhere").mkdir()
    first = build_decontaminate(context, documents, config_for(quiz(tmp_path, prose(2))))
    moved = build_decontaminate(context, documents, config_for(quiz(tmp_path / "elsewhere", prose(2))))
    other = build_decontaminate(context, documents, config_for(quiz(tmp_path / "elsewhere", prose(3))))
    assert moved.reused
    assert moved.identity == first.identity != other.identity


def test_a_missing_or_empty_benchmark_stops_before_any_document_is_read(
    tmp_path: Path, context: RunContext, make_documents: MakeDocuments
) -> None:
    documents = make_documents([[("web", prose(1))]])
    with pytest.raises(InputError, match="does not exist"):
        build_decontaminate(context, documents, config_for(Benchmark(name="quiz", path=tmp_path / "gone.jsonl")))
    with pytest.raises(InputError, match="no items"):
        build_decontaminate(context, documents, config_for(quiz(tmp_path)))
    assert not list((context.root / "work").glob("*/scratch/hits/*"))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("of", ["questions", "answers"])
def test_a_benchmark_replaced_between_its_digest_and_the_reading_is_an_error(
    of: str,
    suffix: str,
    tmp_path: Path,
    context: RunContext,
    make_documents: MakeDocuments,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(path: Path, text: str) -> Path:
        beside = path.with_name("beside")
        beside.write_bytes(gzip.compress(text.encode()) if suffix == ".jsonl.gz" else text.encode())
        return beside.replace(path)

    questions = write(tmp_path / f"questions{suffix}", f"{prose(1, 30)}\n")
    answers = write(tmp_path / f"answers{suffix}", "yes\n")
    benchmark = Benchmark.model_validate(
        {"name": "quiz", "path": questions, "answers_path": answers, "fields": {"context": "line", "id": ""}}
    )
    changed = tmp_path / f"{of}{suffix}"
    documents = make_documents([[("web", prose(4))]])
    whole = decontaminate_module.read_items

    def replaced(*given: Any) -> Any:
        write(changed, f"{prose(5, 30)}\n")
        return whole(*given)

    with monkeypatch.context() as patched:
        patched.setattr(decontaminate_module, "read_items", replaced)
        with pytest.raises(InputError, match=rf"{changed.name} was changed"):
            build_decontaminate(context, documents, config_for(benchmark))
    assert not list(context.root.glob("artifacts/decontaminate/*"))
    (item,) = build_decontaminate(context, documents, config_for(benchmark)).table("items").to_pylist()
    assert (item["context"] == prose(5, 30)) == (of == "questions")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_benchmark_that_unpacks_to_more_than_memory_is_an_error(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_UNPACKED_BYTES", 100_000)
    path = tmp_path / f"quiz{suffix}"
    text = f"{json.dumps({'id': 1, 'question': 'x' * 99_000, 'answer': 'y'})}\n".encode()
    for times, refused in ((1, False), (2, True)):
        path.write_bytes(gzip.compress(text * times) if suffix == ".jsonl.gz" else text * times)
        found = records.read_records(Benchmark(name="quiz", path=path), GENERIC)
        if refused:
            with pytest.raises(InputError, match=r"quiz\.jsonl.* holds more than 100,000 bytes"):
                list(found)
        else:
            assert len(list(found)) == 1
