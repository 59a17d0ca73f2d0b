"""Names and limits: which edits and rules exist, the limit each rule has in its paper, and the four presets.

Only names stand here, so that a recipe can be checked without loading any of the code behind them. Edits run in the
order of `EDITS`, then rules in the order of `LIMITS`; the first rule that fails drops the document.
"""

from dataclasses import dataclass

HTML_NO_TEXT = "html_no_text"
"""Dropped: a page in which no main text was found. Not a switchable rule, since nothing is left to keep."""

EMPTY = "empty"
"""Dropped: nothing but blanks is left after the edits. Not switchable either."""

EDITS = (
    "html_to_text",
    "mojibake",
    "entities",
    "nfc",
    "control_characters",
    "markup",
    "emoji",
    "emoticons",
    "email",
    "ip_address",
    "phone",
    "payment_card",
    "c4_citations",
    "c4_javascript_lines",
    "c4_policy_lines",
    "c4_unfinished_lines",
    "c4_short_lines",
    "repeated_lines",
)

LIMITS: dict[str, float] = {
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
    # Code: Codex (Chen et al. 2021, 3.1) for lines, StarCoder (Li et al. 2023) for characters
    "code_mean_line": 100,
    "code_longest_line": 1000,
    "code_alphanumeric": 0.25,
}


@dataclass(frozen=True)
class Preset:
    """Names of the edits and rules that a document goes through."""

    edits: frozenset[str]
    rules: frozenset[str]


_REPAIR = frozenset({"html_to_text", "mojibake", "entities", "nfc", "control_characters"})
_PERSONAL = frozenset({"email", "ip_address", "phone", "payment_card"})
_PROSE = _REPAIR | _PERSONAL | {"markup", "emoji", "emoticons", "repeated_lines"}

PRESETS = {
    "gopher": Preset(_PROSE, frozenset(name for name in LIMITS if name.startswith("gopher_"))),
    "c4": Preset(
        _PROSE | {name for name in EDITS if name.startswith("c4_")}, frozenset({"c4_sentences", "c4_lorem_ipsum"})
    ),
    "code": Preset(
        frozenset({"html_to_text", "control_characters", "email"}),
        frozenset(name for name in LIMITS if name.startswith("code_")),
    ),
    "minimal": Preset(_REPAIR, frozenset()),
}
