"""Names and limits: which edits and rules exist, the limit each rule has in its paper, and the five presets.

This file holds names alone, so that a recipe is checked without loading the code behind them. Edits run in the order of
`EDITS`, then rules in the order of `LIMITS`, unless a recipe lists others; the first rule that fails drops the
document.
"""

from dataclasses import dataclass
from typing import Literal, get_args

HTML_NO_TEXT = "html_no_text"
"""Dropped: an HTML page in which no main text was found. Cannot be switched off, since nothing is left to keep."""

EMPTY = "empty"
"""Dropped: nothing but whitespace is left after the edits. Cannot be switched off either."""

LANGUAGE = "language"
"""Dropped: in none of the languages that the recipe lists. Without such a list nothing is dropped."""

KindName = Literal[
    "prose",
    "documentation",
    "code",
    "chat",
    "question_answer",
    "verse",
    "table",
    "maths",
    "web_page",
    "markup",
]

KINDS: tuple[KindName, ...] = get_args(KindName)
"""Kinds of text, each with edits and rules of its own in the preset `auto`."""

QUALITY = "quality"
"""Dropped: too unlike the good sources of the recipe, by the classifier and GPT-3's rule, which are applied last."""

CLASSIFIERS = "classifiers"
"""Facts of the classifiers that a recipe has trained; documents are dropped under `classifier_NAME`."""

EDITS = (
    "html_to_text",
    "mojibake",
    "wikitext",
    "entities",
    "nfc",
    "control_characters",
    "alt_texts",
    "markup",
    "homoglyphs",
    "emoji",
    "emoticons",
    "shortcodes",
    "stickers",
    "secret",
    "email",
    "iban",
    "payment_card",
    "national_id",
    "ip_address",
    "phone",
    "c4_citations",
    "c4_javascript_lines",
    "c4_policy_lines",
    "c4_unfinished_lines",
    "c4_short_lines",
    "repeated_lines",
    "spelling",
    "source_tag",
    "domain_tag",
)

PERSONAL = ("secret", "email", "iban", "payment_card", "national_id", "ip_address", "phone")
"""Edits that replace personal data."""

PICTURES = frozenset({"emoji", "emoticons", "shortcodes", "stickers"})
"""Edits of characters and codes that are shown as pictures; `clean.emoji` governs them."""

SPELLING = "spelling"
"""Corrects what the lists of the recipe name; in no preset."""

EDIT_LIMITS: dict[str, float] = {
    "c4_short_lines": 5,  # words, Raffel et al. 2020
    "repeated_lines": 3,  # equal lines in a row, which become one
}

LIMITS: dict[str, float] = {
    # FineWeb (Penedo et al. 2024, 3.3): 0.65 for English, by its language identifier
    "language_confidence": 0.65,
    # Gopher, quality (Rae et al. 2021, A.1.1)
    "gopher_words_min": 50,
    "gopher_words_max": 100_000,
    "gopher_mean_word_min": 3,
    "gopher_mean_word_max": 10,
    "gopher_hashes": 0.1,
    "gopher_ellipses": 0.1,
    "gopher_bullet_lines": 0.9,
    "gopher_ellipsis_lines": 0.3,
    "gopher_alphabetic_words": 0.8,
    "gopher_stop_words": 2,
    # Gopher, repetition (A.1.2, table A1)
    "gopher_duplicate_lines": 0.30,
    "gopher_duplicate_paragraphs": 0.30,
    "gopher_duplicate_line_characters": 0.20,
    "gopher_duplicate_paragraph_characters": 0.20,
    "gopher_top_2_gram": 0.20,
    "gopher_top_3_gram": 0.18,
    "gopher_top_4_gram": 0.16,
    "gopher_duplicate_5_grams": 0.15,
    "gopher_duplicate_6_grams": 0.14,
    "gopher_duplicate_7_grams": 0.13,
    "gopher_duplicate_8_grams": 0.12,
    "gopher_duplicate_9_grams": 0.11,
    "gopher_duplicate_10_grams": 0.10,
    # C4 (Raffel et al. 2020, 2.2)
    "c4_sentences": 3,
    "c4_lorem_ipsum": 0,
    "c4_curly_bracket": 0,
    # FineWeb (3.6); the last is in its published pipeline only
    "fineweb_finished_lines": 0.12,
    "fineweb_short_lines": 0.67,
    "fineweb_repeated_line_characters": 0.1,
    "fineweb_line_feeds": 0.3,
    # Code: Codex (Chen et al. 2021, 3.1) for lines, StarCoder (Li et al. 2023) for characters
    "code_mean_line": 100,
    "code_longest_line": 1000,
    "code_alphanumeric": 0.25,
    # Presets by kind. A limit lies where labelled documents (benchmarks/labels) beyond it are bad and hardly one is
    # good; comments name what is close to it.
    "kind_words": 7,  # a message or a verse of two clauses
    "kind_table_words": 22,  # a command sheet with two entries
    "kind_page_words": 30,  # the entry of one function in a reference has 32
    "kind_web_words": 35,  # a page that explains one command has 36, one that only names its tabs 30
    "kind_open_end": 4,  # lines; a title and a sentence or two that announce what is missing
    "kind_unfinished_words": 12,  # titles and reactions have fewer, and no full stop
    "kind_letters": 0.5,  # prose has 0.75 and more, a page full of links 0.6
    "kind_digits": 0.35,  # a table of dates has 0.25
    "kind_links": 0.5,  # a page of references with a sentence each has 0.4
    "kind_table_links": 0.78,  # a table of functions that are links has 0.77
    "kind_data": 0.3,  # logs and signatures of functions have a tenth
    "kind_content": 0.25,  # a reference of short lines has 0.25, menus and titles have 0
    "kind_placeholders": 0.1,  # articles with a rare word replaced now and then have 0.05
    "kind_checkboxes": 0.2,
    "kind_empty_headings": 0.2,  # titles of parts above titles of chapters are 0.1
    "kind_handles": 0.25,  # a message to one or two persons
    "kind_boilerplate": 600,  # words; longer texts quote a licence or a notice
    "kind_repeated_lines": 0.5,  # refrains and forms repeat a third
    "kind_repeated_words": 0.3,  # twice Gopher's 0.15: terms and phrases of a manual repeat
}


@dataclass(frozen=True)
class Preset:
    """Names of the edits and rules that a document goes through."""

    edits: frozenset[str]
    rules: frozenset[str]


_REPAIR = frozenset({"html_to_text", "wikitext", "mojibake", "entities", "nfc", "control_characters"})
_PROSE = _REPAIR.union(PERSONAL) | PICTURES | {"alt_texts", "markup", "repeated_lines"}
_STRUCTURED = _PROSE - {"repeated_lines"}
_COMMON = frozenset({"kind_data", "kind_placeholders", "kind_checkboxes", "kind_empty_headings", "kind_repeated_lines"})
_TEXT = _COMMON | {"kind_letters", "kind_digits", "kind_links", "kind_content", "kind_open_end"}
_MESSAGES = _TEXT | {"kind_words", "kind_handles"}
_PAGES = _TEXT | {"kind_page_words", "kind_boilerplate"}
_GOPHER = frozenset(name for name in LIMITS if name.startswith("gopher_"))
_C4_EDITS = frozenset(name for name in EDITS if name.startswith("c4_"))
_C4_RULES = frozenset({"c4_sentences", "c4_lorem_ipsum"})

PRESETS = {
    "gopher": Preset(_PROSE, _GOPHER),
    "c4": Preset(_PROSE | _C4_EDITS, _C4_RULES),
    # Penedo et al. 2024, section 3: language, Gopher, C4 without its rule on the ends of lines, and rules of their own.
    "fineweb": Preset(
        _PROSE | (_C4_EDITS - {"c4_unfinished_lines"}),
        _GOPHER
        | _C4_RULES
        | {"language_confidence", "c4_curly_bracket"}
        | {name for name in LIMITS if name.startswith("fineweb_")},
    ),
    "code": Preset(
        frozenset({"html_to_text", "control_characters", *PERSONAL}),
        frozenset(name for name in LIMITS if name.startswith("code_")) | {"kind_digits", "kind_data"},
    ),
    "minimal": Preset(_REPAIR, frozenset()),
    # The preset `auto` has one for each kind; `code` is above.
    "prose": Preset(_PROSE, _MESSAGES | {"kind_unfinished_words", "kind_repeated_words"}),
    "chat": Preset(_PROSE, _MESSAGES - {"kind_content"} | {"kind_unfinished_words"}),
    "question_answer": Preset(_STRUCTURED, _MESSAGES | {"kind_boilerplate"}),
    "documentation": Preset(_STRUCTURED, _PAGES),
    "web_page": Preset(_PROSE, _PAGES | {"kind_repeated_words", "kind_web_words"}),
    "markup": Preset(_STRUCTURED, _PAGES | {"kind_repeated_words"}),
    "table": Preset(
        _REPAIR.union(PERSONAL),
        _COMMON - {"kind_data"} | {"kind_table_words", "kind_digits", "kind_table_links", "kind_boilerplate"},
    ),
    "maths": Preset(
        _REPAIR.union(PERSONAL) | {"alt_texts", "markup"},
        _COMMON | {"kind_words", "kind_links", "kind_digits", "kind_content"},
    ),
    "verse": Preset(
        _STRUCTURED,
        frozenset({"kind_words", "kind_letters", "kind_links", "kind_data", "kind_placeholders"}),
    ),
}
