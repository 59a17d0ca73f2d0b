"""Languages are identified offline, with a confidence over the whole text."""

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.chain import Chain
from tasks.clean.config import CleanConfig
from tasks.clean.document import DocumentContext, Verdicts
from tasks.clean.filters.language import identify_languages, language_model
from tasks.clean.presets import LANGUAGES
from tests.tasks.clean.references import identify_language

TEXTS = {
    "en": "The committee will meet again next week to discuss what should be done about the old bridge. ",
    "ru": "Комитет соберётся на следующей неделе, чтобы решить, что делать со старым мостом через реку. ",
    "it": "Il comitato si riunirà la prossima settimana per decidere che cosa fare del vecchio ponte. ",
    "zh": "委员会下周将再次开会，讨论应该如何处理那座老桥，以及由谁来承担维修的费用。",
}


@pytest.mark.parametrize("language", TEXTS)
def test_a_text_in_one_language_is_identified_with_confidence(language):
    found, confidence = identify_language(TEXTS[language] * 3)
    assert found == language
    assert confidence > 0.9


def test_a_text_in_two_languages_has_about_half_the_confidence():
    mixed = TEXTS["en"] * 15 + TEXTS["it"] * 15
    assert identify_language(mixed)[1] == pytest.approx(0.5, abs=0.26)


def test_windows_cover_a_long_text_to_its_end():
    assert identify_language(TEXTS["en"] * 2 + TEXTS["ru"] * 200)[0] == "ru"


def test_documents_of_other_languages_are_dropped_by_name():
    chain = Chain.of(CleanConfig(preset="minimal", languages=("en", "ru")), "minimal")
    assert chain.clean(TEXTS["en"], DocumentContext())[1].is_kept.all()
    _, verdicts = chain.clean(TEXTS["it"], DocumentContext(language="en"))  # the source's hint does not save it
    assert (verdicts.names, verdicts.evidence) == (["language"], {0: "it"})


def test_norwegian_includes_both_of_its_written_forms():
    bokmal = "Jeg liker ikke å gå på skolen når det regner, men det må jeg. " * 5
    nynorsk = "Eg veit ikkje kva som hender i morgon, men me møtest på stasjonen klokka ti. " * 5
    assert [identify_language(text)[0] for text in (bokmal, nynorsk)] == ["no", "nn"]
    for asked, kept in (("no", [True, True]), ("nb", [True, False]), ("nn", [False, True])):
        chain = Chain.of(CleanConfig(preset="minimal", languages=(asked,)), "minimal")
        found = [chain.clean(text, DocumentContext())[1].is_kept.all() for text in (bokmal, nynorsk)]
        assert found == kept


def test_a_language_that_is_never_identified_is_refused():
    assert frozenset(language_model().languages) == LANGUAGES
    with pytest.raises(ValidationError, match="there is no language `jp`; choose from af"):
        CleanConfig(languages=("en", "jp"))


def test_a_text_of_many_languages_fails_the_confidence_of_fineweb():
    chain = Chain.of(CleanConfig(rules=("language_confidence",)), "fineweb")
    mixed = (TEXTS["en"] * 6, TEXTS["it"] * 6, TEXTS["zh"] * 6, TEXTS["ru"] * 4)
    _, verdicts = chain.clean("\n".join(mixed), DocumentContext())
    assert (verdicts.names, verdicts.limits) == (["language_confidence"], [0.65])
    assert verdicts.values < 0.65


def cleaned(chain, text):
    """Return (language, confidence) of a document as it is cleaned, and whether it is kept."""
    contexts, verdicts = BatchContext.of(DocumentContext(), identify_unknown=True), Verdicts(1)
    chain.clean_many(Texts.of([text]), contexts, np.zeros(1, np.int64), verdicts)
    return contexts.identified_language(0), verdicts.is_kept[0]


def test_an_identified_language_names_the_emoji():
    chain = Chain.of(CleanConfig(preset="minimal", add=("emoji",)), "minimal")
    assert chain.clean(TEXTS["it"] + "❤️", DocumentContext())[0].endswith("cuore rosso")
    language, _ = cleaned(chain, TEXTS["en"] + "❤️")
    assert language[0] == "en"


@pytest.mark.parametrize("emoji", ["❤️", "😀", "👩\u200d💻", "⭐"])
def test_emoji_say_nothing_about_the_language(emoji):
    text = "see you all tomorrow at the station "
    assert identify_language(f"{text}{emoji * 3}") == identify_language(text)
    chain = Chain.of(CleanConfig(preset="minimal", add=("emoji",)), "minimal")
    assert chain.clean(text + emoji, DocumentContext())[0].isascii()


def test_rules_see_the_language_of_the_edited_text():
    """Text that an edit removed, or an emoticon replaced by its name before, must not count."""
    chain = Chain.of(CleanConfig(preset="fineweb", rules=("language_confidence",)), "fineweb")
    short_lines = "\n".join(TEXTS["it"].split()) + "\n"
    with_face, is_kept = cleaned(chain, f"{short_lines * 4}{TEXTS['en'] * 4} :-)")
    without, _ = cleaned(chain, f"{short_lines * 4}{TEXTS['en'] * 4}")
    assert is_kept
    assert without[0] == with_face[0] == "en"
    assert with_face[1] == pytest.approx(without[1], abs=0.05)


def test_a_document_among_others_is_identified_as_alone():
    texts = [text * times for times in (1, 3, 40) for text in TEXTS.values()]
    together = Texts.of(texts)
    languages, confidences = identify_languages(together.data, together.begins, together.ends)
    names = [language_model().languages[number] for number in languages]
    assert list(zip(names, confidences.tolist(), strict=True)) == [identify_language(text) for text in texts]
