"""New data against what earlier runs kept: who is named, what is part of the identity, what cannot be compared."""

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from model.checksummed_json import write_sealed
from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.dedup.config import DedupConfig
from tasks.dedup.index import EarlierPart, datasketch_index, datasketch_query
from tasks.dedup.lsh import BYTES_PER_KEY, passes_within
from tasks.dedup.stage import build_dedup

MakeDocuments = Callable[[Sequence[Sequence[tuple[str, str]]]], Artifact]

QUIET = DedupConfig(planted_pairs=0)


LONG = 400
"""Words of a text of more than 4 x 448 bytes, whose signature is stored."""


def prose(seed: int, words: int = 120) -> str:
    generator = random.Random(seed)
    return " ".join(f"w{generator.randrange(5000)}" for _ in range(words))


def edited(text: str, position: int) -> str:
    words = text.split()
    words[position] = "edited"
    return " ".join(words)


def against(*artifacts: Artifact, **changes: object) -> DedupConfig:
    return QUIET.model_copy(update={"against": tuple(str(artifact.path) for artifact in artifacts), **changes})


def texts_of(artifact: Artifact) -> list[str]:
    return artifact.table("documents").column("text").to_pylist()


def drops(artifact: Artifact) -> list[tuple[str, float, dict[str, object]]]:
    rows = artifact.table("ledger").to_pylist()
    return [(row["rule"], round(row["value"], 3), json.loads(row["evidence"])) for row in rows]


def test_copies_of_what_an_earlier_run_kept_are_removed_and_the_old_document_is_named(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    old = build_dedup(context, make_documents([[("web", prose(1)), ("web", prose(2))], [("web", prose(3))]]), QUIET)
    old_id = dict(zip(texts_of(old), old.table("documents").column("doc_id").to_pylist(), strict=True))
    # A longer and dearer copy would win within a run; against an earlier one it has no chance.
    new_documents = make_documents([[("news", prose(2)), ("news", edited(prose(3), 60) + " more"), ("news", prose(4))]])
    new = build_dedup(context, new_documents, against(old, priorities={"news": 0}))
    assert texts_of(new) == [prose(4)]
    exact, near = drops(new)
    assert exact == (
        "exact_duplicate_of_earlier",
        1.0,
        {"survivor": old_id[prose(2)].hex(), "jaccard": 1.0, "earlier": old.identity},
    )
    assert near[0] == "near_duplicate_of_earlier"
    # 116 shingles, 5 of them changed by the edit, and one more at the end: 111 / 122.
    assert near[1] == pytest.approx(111 / 122, abs=1e-3)
    assert near[2]["survivor"] == old_id[prose(3)].hex()
    assert new.report.facts["against"] == [{"identity": old.identity, "documents": 3}]
    assert new.report.source("news").dropped == {"exact_duplicate_of_earlier": 1, "near_duplicate_of_earlier": 1}
    assert new.table("index").num_rows == 1


@pytest.mark.parametrize("parts", [[[]], [["old"], []], [[], ["old"]]])
def test_parts_of_an_earlier_run_may_be_empty(
    context: RunContext, make_documents: MakeDocuments, parts: list[list[str]]
) -> None:
    old = build_dedup(context, make_documents([[("web", prose(1)) for _ in part] for part in parts]), QUIET)
    documents = make_documents([[("web", prose(2))], [], [("web", prose(1)), ("web", prose(3))]])
    new = build_dedup(context, documents, against(old, planted_pairs=3))
    kept_before = any(parts)
    assert texts_of(new) == [prose(2), *([] if kept_before else [prose(1)]), prose(3)]
    assert [rule for rule, _, _ in drops(new)] == ["exact_duplicate_of_earlier"] * kept_before


def test_a_chain_of_runs_keeps_each_text_once(context: RunContext, make_documents: MakeDocuments) -> None:
    nights = [[prose(1), prose(2)], [edited(prose(2), 7), prose(3)], [prose(1), edited(prose(3), 7), prose(4)]]
    built: list[Artifact] = []
    for texts in nights:
        documents = make_documents([[("web", text) for text in texts]])
        built.append(build_dedup(context, documents, against(*built)))
    assert [texts_of(night) for night in built] == [[prose(1), prose(2)], [prose(3)], [prose(4)]]
    assert {evidence["earlier"] for _, _, evidence in drops(built[2])} == {built[0].identity, built[1].identity}


def test_one_run_over_all_keeps_as_many_as_two_runs_one_against_the_other(
    context: RunContext, make_documents: MakeDocuments
) -> None:
    first = [("a", prose(seed)) for seed in range(30)]
    second = [("b", edited(prose(seed), seed)) for seed in range(20, 50)]
    old = build_dedup(context, make_documents([first]), QUIET)
    new = build_dedup(context, make_documents([second]), against(old))
    whole = build_dedup(context, make_documents([first, second]), QUIET.model_copy(update={"priorities": {"a": 0}}))
    assert texts_of(old) + texts_of(new) == texts_of(whole)


def test_the_earlier_run_counts_by_content_and_not_by_its_path(
    context: RunContext, make_documents: MakeDocuments, tmp_path
) -> None:
    old = build_dedup(context, make_documents([[("web", prose(1))]]), QUIET)
    documents = make_documents([[("web", prose(1)), ("web", prose(2))]])
    new = build_dedup(context, documents, against(old))
    assert new.manifest["parents"]["against-0"]["content"] == old.content
    assert new.identity != build_dedup(context, documents, QUIET).identity
    shutil.copytree(old.path, tmp_path / "elsewhere")
    moved = QUIET.model_copy(update={"against": (str(tmp_path / "elsewhere"),)})
    assert build_dedup(context, documents, moved).outcome == "reused"
    assert build_dedup(context, documents, QUIET.model_copy(update={"against": (old.identity[:9],)})).reused


def test_the_same_bytes_for_any_memory_and_threads(context: RunContext, make_documents, tmp_path) -> None:
    old = build_dedup(context, make_documents([[("a", prose(seed)) for seed in range(0, 6000, 5)]]), QUIET)
    documents = make_documents([[("b", edited(prose(seed), 3)) for seed in range(part, 9000, 12)] for part in (0, 6)])
    contents = set()
    for memory, threads in ((2048, 1), (8192, 3), (1 << 30, 2)):
        elsewhere = RunContext(tmp_path / f"{memory}-{threads}", "run")
        config = against(old, memory_bytes=memory, threads=threads, planted_pairs=10, wipe_out_limit=1.0)
        contents.add(build_dedup(elsewhere, documents, config).content)
    assert len(contents) == 1


def test_recall_of_injected_copies_counts_the_earlier_index_too(context: RunContext, make_documents) -> None:
    old = build_dedup(context, make_documents([[("a", prose(seed)) for seed in range(50)]]), QUIET)
    new = build_dedup(
        context, make_documents([[("b", prose(seed)) for seed in range(40, 140)]]), against(old, planted_pairs=60)
    )
    planted = new.report.facts["planted"]
    assert planted["planted"] == 60
    assert planted["recall"] > 0.9


def test_signatures_of_short_texts_are_made_again(context: RunContext, make_documents: MakeDocuments) -> None:
    kept = [prose(1), prose(2, LONG), prose(3), prose(4, LONG)]
    old = build_dedup(context, make_documents([[("web", text) for text in kept[:3]], [("web", kept[3])]]), QUIET)
    assert old.table("index").column("signature").is_valid().to_pylist() == [False, True, False, True]
    copies = [edited(text, 60) for text in kept]
    new = build_dedup(context, make_documents([[("news", text) for text in (*copies, prose(5))]]), against(old))
    assert texts_of(new) == [prose(5)]
    ids = [doc_id.hex() for doc_id in old.table("documents").column("doc_id").to_pylist()]
    assert [evidence["survivor"] for _, _, evidence in drops(new)] == ids
    lsh = datasketch_index(old)
    assert [lsh.query(datasketch_query(old, text)) for text in copies] == [[one] for one in ids]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shingle_words": 4}, "shingle_words = 5"),
        ({"permutation_seed": 2}, "permutation_seed = 1"),
        ({"rows_per_band": 6}, "bands x rows_per_band = 112"),
    ],
)
def test_signatures_of_other_settings_are_refused(context, make_documents, changes, message) -> None:
    documents = make_documents([[("web", prose(1))]])
    old = build_dedup(context, documents, QUIET)
    with pytest.raises(RecipeError, match=message):
        build_dedup(context, documents, against(old, **changes))


def test_other_bands_of_the_same_length_can_be_compared(context, make_documents) -> None:
    old = build_dedup(context, make_documents([[("web", prose(1))]]), QUIET)
    new = build_dedup(
        context, make_documents([[("web", edited(prose(1), 9)), ("web", prose(2))]]),
        against(old, bands=28, rows_per_band=4),
    )  # fmt: skip
    assert texts_of(new) == [prose(2)]


def test_signatures_that_this_version_would_not_make_are_refused(context, make_documents, monkeypatch) -> None:
    documents = make_documents([[("web", prose(1, LONG)), ("web", prose(2, LONG))]])
    old = build_dedup(context, documents, QUIET)
    plain = EarlierPart.index

    def of_another_version(self: EarlierPart, columns: Sequence[str]):
        table = plain(self, columns)
        return table.take([1, 0]) if columns == ["signature"] else table

    monkeypatch.setattr(EarlierPart, "index", of_another_version)
    with pytest.raises(InputError, match="does not make of the same texts"):
        build_dedup(context, documents, against(old))


def test_names_that_mean_nothing_or_another_stage_are_errors(context, make_documents, tmp_path) -> None:
    documents = make_documents([[("web", prose(1))]])
    with pytest.raises(RecipeError, match="0 dedup artifacts"):
        build_dedup(context, documents, QUIET.model_copy(update={"against": ("abcdef",)}))
    with pytest.raises(RecipeError, match="`documents`"):
        build_dedup(context, documents, against(documents))
    with pytest.raises(InputError, match="no longer exists"):
        build_dedup(context, documents, QUIET.model_copy(update={"against": (str(tmp_path / "gone"),)}))


def test_datasketch_itself_searches_the_index(context, make_documents) -> None:
    texts = [prose(seed) for seed in range(40)]
    dedup = build_dedup(context, make_documents([[("web", text) for text in texts[:30]], [("web", texts[30])]]), QUIET)
    lsh = datasketch_index(dedup)
    keys = [key.hex() for key in dedup.table("index").column("doc_id").to_pylist()]
    assert (len(keys), sorted(lsh.keys)) == (31, sorted(keys))
    for key, text in zip(keys, dedup.table("documents").column("text").to_pylist(), strict=True):
        # One word of 120: 111 of 121 shingles in common, which 16 bands of 7 miss once in 10^6.
        assert lsh.query(datasketch_query(dedup, edited(text, 60))) == [key]
    assert [lsh.query(datasketch_query(dedup, text)) for text in texts[31:]] == [[]] * 9


def test_the_example_of_the_documentation_finds_a_copy(context, make_documents) -> None:
    dedup = build_dedup(context, make_documents([[("web", prose(1)), ("web", prose(2))]]), QUIET)
    page = (Path(__file__).parents[3] / "docs" / "continue_training.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    example = example.replace("bessemer-data/artifacts/dedup/IDENTITY", str(dedup.path))
    exec(example.replace("a text that may be known already", edited(prose(2), 60)), names)
    assert names["copies"] == [dedup.table("index").column("doc_id")[1].as_py().hex()]


def test_less_memory_means_more_passes() -> None:
    assert [passes_within(1000 * BYTES_PER_KEY, memory) for memory in (8000, 7999, 4000, 2001, 1000)] == [1, 2, 2, 4, 8]


def test_a_run_id_names_the_index_that_it_ended_with(context, make_documents) -> None:
    old = build_dedup(context, make_documents([[("web", prose(1))]]), QUIET)
    for run, stages in (("night1", [{"stage": "dedup", "path": str(old.path)}]), ("night2", [{"stage": "clean"}])):
        (context.root / "runs" / run).mkdir(parents=True)
        write_sealed(context.root / "runs" / run / "run.json", {"stages": stages})
    documents = make_documents([[("web", prose(1)), ("web", prose(2))]])
    named = build_dedup(context, documents, QUIET.model_copy(update={"against": ("night1",)}))
    assert texts_of(named) == [prose(2)]
    with pytest.raises(RecipeError, match="night2, which ended before"):
        build_dedup(context, documents, QUIET.model_copy(update={"against": ("night2",)}))


def test_of_earlier_documents_that_are_alike_each_can_be_named(context, make_documents) -> None:
    words = prose(1).split()
    first = " ".join(words)
    second = " ".join(["other" if place in (10, 40) else word for place, word in enumerate(words)])
    old = [build_dedup(context, make_documents([[("web", text)]]), QUIET) for text in (first, second)]
    new = build_dedup(context, make_documents([[("web", edited(second, 100)), ("web", prose(2))]]), against(*old))
    ((rule, jaccard, evidence),) = drops(new)
    # 111 of 121 shingles are the second's, 101 of 131 the first's; of the first two 106 of 126 are common.
    assert (rule, jaccard) == ("near_duplicate_of_earlier", pytest.approx(111 / 121, abs=1e-3))
    assert evidence["earlier"] == old[1].identity
