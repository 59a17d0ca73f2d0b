"""Words of a user's list are corrected, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from model.errors import InputError
from tasks.artifacts.build import RunContext
from tasks.clean.config import CleanConfig, SpellingConfig
from tasks.clean.document import DocumentContext
from tasks.clean.edits.spelling import SpellingList, correct_spelling, read_spelling_list
from tasks.clean.stage import build_clean

ENGLISH = SpellingList("en", {"recieve": "receive", "alot": "a lot", "dont": "don't"})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("I recieve alot.", "I receive a lot."),
        ("Recieve! RECIEVE!", "Receive! RECEIVE!"),
        ("Dont.", "Don't."),
        ("recieved, un-recieve, a_recieve", "recieved, un-recieve, a_recieve"),
        ("nothing wrong", "nothing wrong"),
    ],
)
def test_whole_words_keep_their_case(before: str, after: str) -> None:
    assert correct_spelling((ENGLISH,), before, DocumentContext(language="en")) == after


def test_a_list_is_for_its_language() -> None:
    assert correct_spelling((ENGLISH,), "alot", DocumentContext(language="de")) == "alot"
    anywhere = SpellingList(None, {"alot": "a lot"})
    assert correct_spelling((anywhere,), "alot", DocumentContext()) == "a lot"


def test_a_list_of_a_language_is_for_its_regions_too() -> None:
    assert correct_spelling((ENGLISH,), "alot", DocumentContext(language="en-GB")) == "a lot"
    brazilian = SpellingList("pt-BR", {"facto": "fato"})
    assert correct_spelling((brazilian,), "facto", DocumentContext(language="pt-BR")) == "fato"
    assert correct_spelling((brazilian,), "facto", DocumentContext(language="pt-PT")) == "facto"


@pytest.mark.parametrize(
    ("listed", "found", "right"), [("no", "nb", "ikke"), ("nb", "no", "ikke"), ("nn", "no", "ikje")]
)
def test_a_norwegian_list_is_for_what_the_identifier_calls_norwegian(listed: str, found: str, right: str) -> None:
    """It gives Bokmål as `no` or as `nb`; Nynorsk alone is no Bokmål."""
    norwegian = SpellingList(listed, {"ikje": "ikke"})
    assert correct_spelling((norwegian,), "ikje", DocumentContext(language=found)) == right


def test_in_a_script_without_spaces_it_matches_anywhere_and_the_longest_wins() -> None:
    chinese = SpellingList("zh", {"帐号": "账号", "帐": "账"})
    assert correct_spelling((chinese,), "我的帐号和帐。", DocumentContext(language="zh")) == "我的账号和账。"


def test_marks_are_part_of_their_word(tmp_path: Path) -> None:
    hindi = SpellingList("hi", {"मन": "जी", "हिन्दि": "हिन्दी"})
    context = DocumentContext(language="hi")
    assert correct_spelling((hindi,), "मनाना मन हिन्दि मनी", context) == "मनाना जी हिन्दी मनी"
    (tmp_path / "list.tsv").write_text("cafe\u0301s\tcafés\nहिन्दि\tहिन्दी\n")
    assert set(read_spelling_list(SpellingConfig(path=str(tmp_path / "list.tsv"))).corrections) == {"cafés", "हिन्दि"}


def test_a_list_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "en.tsv"
    path.write_text("recieve\treceive\n\nAlot\ta lot\n")
    found = read_spelling_list(SpellingConfig(path=str(path), language="en"))
    assert found.corrections == {"recieve": "receive", "alot": "a lot"}


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "en.tsv"
    path.write_text("recieve\treceive\n", encoding="utf-8-sig")
    assert read_spelling_list(SpellingConfig(path=str(path))).corrections == {"recieve": "receive"}


def test_the_digest_depends_on_pairs_and_language_and_not_on_their_order() -> None:
    turned = SpellingList("en", dict(reversed(ENGLISH.corrections.items())))
    assert turned.digest() == ENGLISH.digest()
    assert SpellingList("de", ENGLISH.corrections).digest() != ENGLISH.digest()
    assert SpellingList("en", {"recieve": "receive"}).digest() != ENGLISH.digest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recieve receive\n", "line 1 is not `wrong TAB right`"),
        ("a\tb\n\nin fact\tindeed\n", "line 3: `in fact` is not one word"),
        ("teh\tthe\nteh\tten\n", "line 2: `teh` becomes `ten` here and `the` further up"),
        ("\n", "contains no corrections"),
    ],
)
def test_a_wrong_list_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_spelling_list(SpellingConfig(path=str(path)))


def test_the_stage_corrects_and_another_list_is_another_input(
    context: RunContext, make_documents: Any, tmp_path: Path
) -> None:
    path = tmp_path / "en.tsv"
    path.write_text("recieve\treceive\n")
    documents = make_documents([[("s", "We recieve what was sent to us.")]])
    config = CleanConfig(preset="minimal", spelling=(SpellingConfig(path=str(path)),))
    cleaned = build_clean(context, documents, config)
    assert cleaned.table("documents")["text"].to_pylist() == ["We receive what was sent to us."]
    assert cleaned.table("ledger")["rule"].to_pylist() == ["spelling"]
    assert build_clean(context, documents, config).reused
    path.write_text("recieve\tget\n")
    assert not build_clean(context, documents, config).reused
