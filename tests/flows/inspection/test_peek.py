"""What a stage did to documents whose outcome is known, and texts compared by lines."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner, Result

from flows.cli import app
from flows.inspection.preview import peek
from flows.inspection.preview_rows import InputSettings, Selection, model_inputs
from flows.inspection.terminal import MAX_CHARS, fitted, print_views
from flows.metrics.text_diff import ADDED, EVEN_PIECE, REMOVED, SAME, SHARED, inline_difference, shared_passages
from flows.recipe.load import load_recipe
from flows.runs.pipeline import BUILDERS
from model.checksummed_json import write_sealed
from model.data.row_format import RowFormat
from model.data.span_lengths import Denoising
from model.errors import InputError, RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.chunk.config import ChunkConfig
from tasks.tokenizer.open import open_tokenizer
from tasks.vocab.config import BERT_TOKENS, VocabConfig
from tests.command import invoke

ALL = Selection(count=10_000, seed=1)


@pytest.fixture(scope="module")
def artifacts(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    root = tmp_path_factory.mktemp("root")
    recipe, context = load_recipe(foundry / "foundry.toml", root), RunContext(root, run_id="peek")
    found = {"sample": BUILDERS["sample"](context, recipe.sample)}
    for stage, parent in (
        ("clean", "sample"),
        ("dedup", "clean"),
        ("decontaminate", "dedup"),
        ("vocab", "decontaminate"),
    ):
        found[stage] = BUILDERS[stage](context, found[parent], getattr(recipe, stage))
    found["chunk"] = BUILDERS["chunk"](context, found["decontaminate"], found["vocab"], recipe.chunk)
    record = {"run_id": "20260101T000000Z-abcdef", "recipe_name": "foundry", "stages": []}
    record["stages"] = [{"stage": stage, "path": str(artifact.path)} for stage, artifact in found.items()]
    folder = root / "runs" / record["run_id"]
    folder.mkdir(parents=True)
    write_sealed(folder / "run.json", record)
    return found


def test_a_dropped_document_comes_with_rule_value_and_limit(artifacts: dict[str, Artifact]):
    (view,) = [view for view in peek(artifacts, "clean", ALL) if view["path"] == "short.txt"]
    assert view["title"].startswith("dropped by kind_words, 2 against 7")
    assert view["text_kind"] == "prose"
    console = Console(record=True, width=200)
    print_views([view], console, full=False)
    assert "kind of text: prose" in console.export_text()
    assert view["segments"] == [(REMOVED, "Too short.\n")]


def test_a_duplicate_is_beside_its_survivor(artifacts: dict[str, Artifact]):
    views = {view["path"]: view for view in peek(artifacts, "dedup", ALL)}
    near = views["near-twin.txt"]
    assert near["survivor"]["path"] == "near-twin-longer.txt"
    assert 0.8 <= near["value"] < 1
    assert next(kind for kind, _ in near["segments"]) == SHARED
    twins = {"original.txt", "twin.txt"}
    (gone,) = twins & views.keys()
    assert {gone, views[gone]["survivor"]["path"]} == twins
    assert views[gone]["value"] == 1


def test_a_cut_shows_the_passage_and_its_item(artifacts: dict[str, Artifact]):
    (view,) = [view for view in peek(artifacts, "decontaminate", ALL) if view["path"] == "leak.txt"]
    (cut,) = [text for kind, text in view["segments"] if kind == REMOVED]
    flat = " ".join(cut.split())
    assert " ".join(view["item"]["match_text"].split()) in flat
    assert "cloze leaked" in view["title"]


def test_pieces_join_to_the_text_and_rows_to_their_documents(artifacts: dict[str, Artifact]):
    read = {view["doc_id"]: view["segments"][0][1] for view in peek(artifacts, "sample", ALL)}
    for view in peek(artifacts, "vocab", Selection(3, 1, source="notes")):
        assert read[view["doc_id"]].startswith("".join(view["pieces"])[:100])
    (row,) = peek(artifacts, "chunk", Selection(1, 1))
    assert sum(span["tok_len"] for span in row["spans"]) <= 65
    assert len(row["segments"]) == len(row["spans"])
    rows = peek(artifacts, "chunk", ALL)
    assert any(len(row["spans"]) == 1 for row in rows)
    for row in rows:
        count = "1 segment" if len(row["spans"]) == 1 else f"{len(row['spans'])} segments"
        assert f", {count}, loss from token " in row["title"]


def test_a_row_of_pairs_is_shown_with_its_special_tokens_and_label(artifacts: dict[str, Artifact], tmp_path: Path):
    context, decontaminate = RunContext(tmp_path, run_id="pairs"), artifacts["decontaminate"]
    vocab = BUILDERS["vocab"](context, decontaminate, VocabConfig(vocab_size=400, special_tokens=BERT_TOKENS))
    found, padded = set[str](), 0
    config = ChunkConfig(objective="masked_lm", row_length=64, budget_tokens=1000)
    chunk = BUILDERS["chunk"](context, decontaminate, vocab, config)
    of_pairs = {**artifacts, "vocab": vocab, "chunk": chunk}
    for row in peek(of_pairs, "chunk", Selection(20, 1)):
        length, _, label = row["title"].partition(": ")[2].rpartition(", ")
        special = [text for kind, text in row["segments"] if kind == SAME]
        assert special == ["[CLS] ", *[" [SEP] "] * (1 if label == "A alone" else 2)]
        assert len(row["spans"]) == len(special) - 1
        padding = 64 - sum(span["tok_len"] for span in row["spans"]) - len(special)
        assert length == ("64 tokens" + (f", {padding} of them padding" if padding else ""))
        padded += padding > 0
        found.add(label)
    assert {"B follows A in its document", "B comes from another document"} <= found
    assert padded


def test_a_row_of_pairs_shows_what_is_hidden_and_what_exists_in_its_place(artifacts: dict[str, Artifact], tmp_path):
    context, decontaminate = RunContext(tmp_path, run_id="pairs"), artifacts["decontaminate"]
    vocab = BUILDERS["vocab"](context, decontaminate, VocabConfig(vocab_size=400, special_tokens=BERT_TOKENS))
    for whole_words in (False, True):
        config = ChunkConfig(objective="masked_lm", row_length=64, budget_tokens=1000, whole_words=whole_words)
        chunk = BUILDERS["chunk"](context, decontaminate, vocab, config)
        for row in peek({"decontaminate": decontaminate, "vocab": vocab, "chunk": chunk}, "chunk", Selection(5, 1)):
            (read,) = row["as_read"]
            assert 1 <= int(read["title"].split()[1]) <= 10
            text = "".join(part for kind, part in read["segments"] if kind in (SAME, REMOVED))
            shown = "".join(part for _, part in row["segments"])
            assert "".join(text.split()) == "".join(shown.split())
            assert any("[MASK]" in part for kind, part in read["segments"] if kind == ADDED)


def test_a_row_of_t5_shows_what_the_encoder_reads_and_the_decoder_writes(artifacts: dict[str, Artifact], tmp_path):
    context, decontaminate = RunContext(tmp_path, run_id="spans"), artifacts["decontaminate"]
    vocab = BUILDERS["vocab"](context, decontaminate, VocabConfig(vocab_size=400, sentinels=20))
    # 70 tokens of random spans lose 10 in 3.
    expected: list[tuple[Denoising, tuple[int, int]]] = [
        ("random_spans", (64, 14)),
        ("bert_style", (64, 64)),
        ("language_model", (1, 64)),
    ]
    for kind, lengths in expected:
        config = ChunkConfig(objective="span_corruption", denoising=kind, input_length=64, budget_tokens=1000)
        chunk = BUILDERS["chunk"](context, decontaminate, vocab, config)
        views = peek({"decontaminate": decontaminate, "vocab": vocab, "chunk": chunk}, "chunk", Selection(8, 1))
        row = next(row for row in views if "padding" not in row["title"])
        encoder, decoder = row["as_read"]
        assert (encoder["title"], decoder["title"]) == (
            f"the encoder reads {lengths[0]} tokens",
            f"the decoder writes {lengths[1]} tokens",
        )
        signs = [[part for kind, part in text["segments"] if kind == ADDED] for text in (encoder, decoder)]
        assert [side[-1].split()[-1] for side in signs] == ["</s>"] * 2
        if kind == "random_spans":
            assert [sign.split()[0] for side in signs for sign in side[:1]] == ["<extra_id_0>"] * 2
        if kind == "bert_style":
            assert "<extra_id_0>" in " ".join(signs[0])
        if kind != "random_spans":
            assert "".join("".join(part for _, part in row["segments"]).split())[:40] in "".join(
                "".join(part for _, part in decoder["segments"]).split()
            )


def test_a_row_of_gpt_is_read_as_it_is_or_its_beginning_both_ways(artifacts: dict[str, Artifact]):
    assert all(row["as_read"] == [] for row in peek(artifacts, "chunk", Selection(3, 1)))
    chunk, tokenizer = artifacts["chunk"], open_tokenizer(artifacts["vocab"])
    table = chunk.table("sequences").slice(0, 2)
    reported = RowFormat.of(table.schema)
    assert reported is not None
    tokens, rows = np.array(table.column("tokens").to_pylist()), np.arange(2)
    for (text,) in model_inputs(tokens, rows, reported, tokenizer, InputSettings(1, has_prefix=True)):
        assert [kind for kind, _ in text["segments"]] == [SHARED, SAME]
        read, written = (int(word) for word in text["title"].split() if word.isdigit())
        assert read + written == 65


def test_rows_as_read_are_reported_in_the_terminal(artifacts: dict[str, Artifact], tmp_path: Path):
    view = {"title": "row 1", "segments": [(EVEN_PIECE, "ab")]}
    view["as_read"] = [{"title": "read, 1 tokens hidden", "segments": [(SAME, "a"), (REMOVED, "b"), (ADDED, "[MASK]")]}]
    reported = io.StringIO()
    print_views([view], Console(file=reported, width=80), full=False)
    assert reported.getvalue().splitlines()[:4] == ["row 1", "ab|", "read, 1 tokens hidden", "a[-b-]{+[MASK]+}"]


def test_the_same_seed_shows_the_same_and_more_only_adds(artifacts: dict[str, Artifact]):
    def ids(count: int, seed: int) -> list[str]:
        return [view["doc_id"] for view in peek(artifacts, "sample", Selection(count, seed))]

    assert ids(5, 1) == ids(5, 1) == ids(9, 1)[:5]
    assert ids(5, 1) != ids(5, 2)


def test_source_and_rule_narrow_the_choice(artifacts: dict[str, Artifact]):
    assert {view["source"] for view in peek(artifacts, "sample", Selection(50, 1, source="code"))} == {"code"}
    only = peek(artifacts, "dedup", Selection(50, 1, rule="exact_duplicate"))
    assert {view["rule"] for view in only} == {"exact_duplicate"}
    with pytest.raises(InputError, match="source nowhere; sources: code, notes"):
        peek(artifacts, "sample", Selection(5, 1, source="nowhere"))
    with pytest.raises(RecipeError, match="only clean, dedup, decontaminate have rules"):
        peek(artifacts, "vocab", Selection(5, 1, rule="emoji"))


def test_a_rule_that_nobody_knows_is_answered_with_those_that_did_something(artifacts: dict[str, Artifact]):
    with pytest.raises(InputError, match=r"for rule emojis; rules and edits .*kind_words \(1\)"):
        peek(artifacts, "clean", Selection(5, 1, rule="emojis"))


def test_a_stage_that_removed_nothing_is_no_error(tmp_path: Path):
    """One document has no duplicate."""
    artifacts = cleaned(tmp_path)
    recipe, context = load_recipe(tmp_path / "mine.toml", tmp_path), RunContext(tmp_path / "root", run_id="peek")
    artifacts["dedup"] = BUILDERS["dedup"](context, artifacts["clean"], recipe.dedup)
    stages = [{"stage": stage, "path": str(artifact.path)} for stage, artifact in artifacts.items()]
    record = {"run_id": "mine", "recipe_name": "mine", "stages": stages}
    write_sealed(tmp_path / "root" / "runs" / "mine" / "run.json", record)
    words = ("data", "peek", "dedup", "--root", tmp_path / "root")
    assert invoke(*words).stdout == "dedup removed nothing\n"
    assert invoke(*words, "--source", "mine").stdout == "dedup removed nothing of the source mine\n"
    assert json.loads(invoke(*words, "--json").stdout) == []
    assert "; sources: mine" in invoke(*words, "--source", "none", code=3).stderr


MANY_EDITS = "Write to smith@example.org <b>soon</b>. " + "The furnace is lit and the iron runs. " * 40 + "Well done 🎉"


def cleaned(folder: Path, *settings: str) -> dict[str, Artifact]:
    """Sample and clean of one document that many edits change."""
    (folder / "mine").mkdir()
    (folder / "mine" / "a.txt").write_text(MANY_EDITS)
    (folder / "mine.toml").write_text(
        'name = "mine"\nbudget_tokens = 1000\n[[sources]]\nname = "mine"\npaths = ["{recipe}/mine"]\nweight = 1.0\n'
        '[clean]\nrules = ["gopher_words_min"]\n'
    )
    recipe, context = load_recipe(folder / "mine.toml", folder, settings), RunContext(folder / "root", run_id="peek")
    sample = BUILDERS["sample"](context, recipe.sample)
    return {"sample": sample, "clean": BUILDERS["clean"](context, sample, recipe.clean)}


@pytest.mark.parametrize(("edit", "gone"), [("emoji", "🎉"), ("email", "smith@example.org")])
def test_only_what_one_edit_did_is_shown(tmp_path: Path, edit: str, gone: str):
    (view,) = peek(cleaned(tmp_path), "clean", Selection(1, 1, rule=edit))
    assert view["title"].endswith(f"; shown is {edit} alone")
    removed = [text for kind, text in view["segments"] if kind == REMOVED]
    assert removed
    assert all(text in gone for text in removed)
    assert (REMOVED, removed[0]) in fitted(view["segments"])[0], "the excerpt is around it"
    if edit == "emoji":
        assert (ADDED, "party popper") in view["segments"]


def test_edits_that_cannot_be_run_again_are_shown_together(tmp_path: Path):
    (tmp_path / "words.txt").write_text("furnase\tfurnace\n")
    artifacts = cleaned(tmp_path, f'clean.spelling=[{{path = "{tmp_path}/words.txt"}}]')
    (view,) = peek(artifacts, "clean", Selection(1, 1, rule="emoji"))
    assert "alone" not in view["title"]
    changed = "".join(text for kind, text in view["segments"] if kind == REMOVED)
    assert "🎉" in changed
    assert "smith" in changed


def test_the_command_works_in_a_pipe(artifacts: dict[str, Artifact]):
    root = artifacts["sample"].path.parents[2]
    shown = CliRunner().invoke(app, ["data", "peek", "clean", "--root", str(root), "-n", "99", "--rule", "kind_words"])
    assert shown.exit_code == 0, shown.output
    assert "[-Too short.\n-]" in shown.output
    assert "\x1b" not in shown.output
    views = json.loads(CliRunner().invoke(app, ["data", "peek", "chunk", "--root", str(root), "--json"]).stdout)
    assert len(views) == 5
    assert CliRunner().invoke(app, ["data", "peek", "evaluate", "--root", str(root)]).exit_code == 2


def test_the_run_that_answers_is_named_and_where_it_cannot_one_that_can(artifacts: dict[str, Artifact], tmp_path: Path):
    full, short = "20260101T000000Z-abcdef", "20260102T000000Z-fedcba"
    stages = [{"stage": stage, "path": str(artifact.path)} for stage, artifact in artifacts.items()]

    def add(run_id: str, reached: list[dict[str, str]]) -> None:
        (tmp_path / "runs" / run_id).mkdir(parents=True)
        record = {"run_id": run_id, "recipe_name": "foundry", "stages": reached}
        write_sealed(tmp_path / "runs" / run_id / "run.json", record)

    def asked(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--root", str(tmp_path)])

    add(short, stages[:2])
    assert f"Under {tmp_path} no run has one" in asked("data", "peek", "chunk").stderr
    assert asked("data", "tokens", "air", "--run", short).exit_code == InputError.exit_code
    add(full, stages)
    failed = asked("data", "peek", "chunk")
    assert f"the run {short} has no artifact of the stage `chunk`" in failed.stderr
    assert f"--run {full}" in failed.stderr
    assert f"run {short}, recipe foundry" in asked("data", "peek", "clean", "--json").stderr
    reported = asked("data", "tokens", "air", "--json")
    assert f"run {full}, recipe foundry" in reported.stderr
    assert json.loads(reported.stdout)[0]["unknown"] == 0


@given(st.text("ab \n.é世", max_size=60), st.text("ab \n.é世", max_size=60))
def test_a_difference_holds_both_texts(before: str, after: str):
    segments = inline_difference(before, after)
    assert "".join(text for kind, text in segments if kind != ADDED) == before
    assert "".join(text for kind, text in segments if kind != REMOVED) == after


def test_of_a_long_text_a_line_that_changed_is_compared_by_words():
    lines = [f"line {number} of the book\n" for number in range(2000)]
    assert inline_difference("".join(lines), "".join([*lines[:1000], "line 1000 of a book\n", *lines[1001:]])) == [
        (SAME, "".join(lines[:1000])),
        (SAME, "line 1000 of "),
        (REMOVED, "the"),
        (ADDED, "a"),
        (SAME, " book\n"),
        (SAME, "".join(lines[1001:])),
    ]


@given(st.text("ab c", max_size=80), st.text("ab c", max_size=80))
def test_marking_shared_passages_loses_nothing(text: str, other: str):
    parts = [part for _, part in shared_passages(text, other)]
    assert "".join(parts) == text
    assert all(parts)


def test_a_long_text_is_cut_and_the_loss_reported():
    segments = [(SAME, "a" * 5000), (REMOVED, "gone"), (SAME, "b" * 5000)]
    shown, hidden = fitted(segments)
    assert (REMOVED, "gone") in shown
    assert hidden == 10_000 - 240
    assert sum(len(text) for _, text in shown) < MAX_CHARS
