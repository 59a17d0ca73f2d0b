"""Damaged text is repaired and undamaged text is left alone, in every script."""

import ftfy
import pytest
from ftfy.badness import is_bad
from hypothesis import given
from hypothesis import strategies as st

from tasks.clean.document import DocumentContext
from tasks.clean.edits.unicode_repair import compose, remove_invisible, undo_entities, undo_mojibake

TEXT = DocumentContext("text")


@pytest.mark.parametrize(
    "original", ["naïve café", "schön", "Привет, мир", "“quoted” — dash", "中文字符", "voilà le travail"]
)
def test_utf8_read_as_windows_1252_is_undone(original):
    broken = original.encode().decode("sloppy-windows-1252")
    assert undo_mojibake(f"sound line\n{broken}", TEXT) == f"sound line\n{original}"


@pytest.mark.parametrize(
    "sound",
    [
        "plain",
        "“curly” quotes—and ’more’",
        "Ｗｉｄｅ forms and ﬁ ligatures",
        "Ёлка и №5",
        "§ 5 – 10 €",
    ],
)
def test_undamaged_text_is_the_same_object(sound):
    assert undo_mojibake(sound, TEXT) == sound


@given(st.text(st.sampled_from("aZ .éÉâÂÃà°œŒ€™“”‘’—…\u00a0\u2060абвРСЂ中の한¡«»¦¤×²√≈‚ÄØÙ─\u0080\u0093")))
def test_whatever_ftfy_finds_bad_reaches_ftfy(line):
    if is_bad(line):
        assert undo_mojibake(line, TEXT) == ftfy.fix_encoding(line)


@given(
    st.text(st.sampled_from("aZ .éÉâÂÃà°œŒ€™“”‘’—…\u00a0\u200aабвРСЂ中¡«»¦¤×²√≈‚Ø\u0093"), max_size=12),
    st.sampled_from(["a sound line ", "“так” — ", "他说：“好。”", "é "]),
)
def test_in_a_long_line_the_surroundings_of_signs_decide(piece, sound):
    line = sound * 9 + piece + sound * 9
    assert undo_mojibake(f"x\n{line}\nx", TEXT) == f"x\n{ftfy.fix_encoding(line)}\nx"


def test_entities_are_undone_only_in_text_without_markup():
    assert undo_entities("caf&eacute; &amp; co", TEXT) == "café & co"
    assert undo_entities("a <b> &amp; c", TEXT) == "a <b> &amp; c"
    assert undo_entities("a &amp; c", DocumentContext("markdown")) == "a &amp; c"


def test_letters_and_marks_are_composed():
    assert compose("e\u0301", TEXT) == "é"
    assert compose("ﬁ ①", TEXT) == "ﬁ ①"


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        ("a\r\nb\rc\x0cd\u2028e\tf", "a\nb\nc\nd\ne\tf"),
        ("nul\x00l bell\x07", "null bell"),
        ("zero\u200bwidth\ufeff soft\u00adhyphen", "zerowidth softhyphen"),
        ("if (admin\u202e\u2066) {}", "if (admin) {}"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क्\u200dष", "क्\u200dष"),
        ("la\u200dtin \u200c", "latin "),
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("hidden\U000e0041\U000e0042", "hidden"),
    ],
)
def test_invisible_characters_are_removed_and_needed_ones_kept(broken, repaired):
    assert remove_invisible(broken, TEXT) == repaired


@given(st.text())
def test_repairs_settle_after_one_pass(text):
    once = remove_invisible(compose(text, TEXT), TEXT)
    assert remove_invisible(once, TEXT) == once
