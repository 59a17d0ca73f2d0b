"""An edit whose trigger is absent changes nothing, on any text: the prefilter never hides work from an edit."""

import ftfy
import numpy as np
import pytest
from ftfy.badness import is_bad
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.clean.batch import Texts
from tasks.clean.document import DocumentContext
from tasks.clean.edits.emoji import ANYWHERE, ISOLATED_EMOTICONS
from tasks.clean.edits.registry import EDIT_REGISTRY
from tasks.clean.kernels.prefilter import (
    ALWAYS,
    AT,
    BLANK_TEXT,
    DIGIT_RUN,
    MOJIBAKE,
    POLICY,
    REPEATED_LINE,
    UNSEGMENTED_SCRIPT,
)

PIECES = st.sampled_from(
    [
        *"aZ 1290.:-+()[]<>&#@;/_!?\n\t\r\u200b\u00ad\u0301\u2028é我あกЫ🙂❤️👍🏽ÃâÂ°€™\u0093½×²√≈ß",
        "jo@mill.org", "81.169.145.78", "2a00:1450:4001:82a::200e", "+49 30 1234567", "(801) 596-1887", "615-741-3491",
        "4111 1111 1111 1111", "378282246310005", ":smile:", "[捂脸]", "[12]", "[edit]", "JavaScript", "Terms of Use",
        "privacy policy", "COOKIE policy", "uses cookies", "&amp;", "&eacute;", "<br>", "<!-- x -->", "![a](b.png)",
        "[![b](https://x/badge.svg)](u)", "<img alt='x'>", "same line\nsame line\nsame line\n", "\x1b[31m", "1.2.3.4",
        "pаypal", "naïve", "Ã©", "â€œ", "Ð¿Ñ€Ð¸", "# ", "1\ufe0f\u20e3", "\U0001f1e9\U0001f1ea",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.one_of(PIECES, st.sampled_from((*ANYWHERE, *ISOLATED_EMOTICONS))), max_size=12).map("".join),
    st.lists(PIECES, max_size=8).map(" ".join),
    st.text(st.sampled_from("0123456789 .-+():"), max_size=40),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)
TRIGGERED = {name: edit for name, edit in EDIT_REGISTRY.items() if edit.trigger != ALWAYS}


def features(text):
    return int(Texts.of([text]).features[0])


@settings(max_examples=150, deadline=None)
@example("card 4222222222222")
@given(TEXTS)
def test_an_edit_whose_trigger_is_absent_changes_nothing(text):
    found = features(text)
    for name, edit in TRIGGERED.items():
        if not found & edit.trigger:
            for kind in ("text", "markdown", "html"):
                assert edit.function(text, DocumentContext(kind, "en")) == text, name


@settings(max_examples=200, deadline=None)
@given(
    st.text(st.sampled_from("aZ .éÉâÂÃà°œŒ€™“”‘’—…\u00a0\u2060абвыРСЂЃ中の한\u2009\u200a¡«»¦¤×²√≈‚ÄØÙ─\u0080\u0093🙂❤️"))
)
def test_whatever_ftfy_finds_bad_is_flagged_as_mojibake(line):
    if is_bad(line) or ftfy.fix_encoding(line) != line:
        assert features(line) & MOJIBAKE


@pytest.mark.parametrize(
    "sound",
    [
        "plain words, and no more: a (short) list - of 3 things [see below]",
        "“curly” quotes—and ’more’",
        "Ёлка, подъезд и щёголь",
        "他说：“好。”然后走了",
        "日本語のテキスト",
    ],
)
def test_undamaged_text_needs_no_repair(sound):
    wanted = [EDIT_REGISTRY[name].trigger for name in ("mojibake", "entities", "control_characters", "markup", "emoji")]
    assert not any(features(sound) & trigger for trigger in wanted)


def test_documents_of_a_buffer_are_scanned_separately():
    raw = np.frombuffer(b"a@b.org plain same\nsame", np.uint8)
    first, second, third = Texts(raw, np.array([0, 7, 14, 23], np.int64)).features.tolist()
    assert first == ALWAYS | AT
    assert second == ALWAYS
    assert third == ALWAYS | REPEATED_LINE


def test_features_of_whitespace_scripts_words_and_digits():
    assert features("") & BLANK_TEXT
    assert features(" \n\u3000\t") & BLANK_TEXT
    assert not features(" \n.") & BLANK_TEXT
    assert features("plain 我") & UNSEGMENTED_SCRIPT
    assert not features("plain мы") & UNSEGMENTED_SCRIPT
    for words in ("Our Privacy Policy", "the terms of USE", "a cookie"):
        assert features(words) & POLICY
        assert not features(words[:-2]) & POLICY
    assert features("call (801) 596-18") & DIGIT_RUN
    assert not features("call (801) and 596-18") & DIGIT_RUN
    assert features("a\nsame\nsame\nb") & REPEATED_LINE
    assert not features("a\nsame\nsome\n\n\nsame") & REPEATED_LINE
