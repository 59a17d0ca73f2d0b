"""Names: which edits exist, and the presets, which list edits and rules (`rules.RULES`).

Edits run in the order of `EDITS`, then rules in that of `RULES`, unless a recipe lists others; the first rule that
fails drops the document.
"""

from dataclasses import dataclass

from tasks.clean.rules import RULES

HTML_NO_TEXT = "html_no_text"
"""Dropped: an HTML page in which no main text was found. Cannot be switched off, since nothing is left to keep."""

EMPTY = "empty"
"""Dropped: nothing but whitespace is left after the edits. Cannot be switched off either."""

LANGUAGE = "language"
"""Dropped: in none of the languages that the recipe lists. Without such a list nothing is dropped."""

_CODES = """af am an ar as az be bg bn br bs ca cs cy da de dz el en eo es et eu fa fi fo fr ga gl gu he hi hr ht hu hy
    id is it ja jv ka kk km kn ko ku ky la lb lo lt lv mg mk ml mn mr ms mt nb ne nl nn no oc or pa pl ps pt qu ro ru rw
    se si sk sl sq sr sv sw ta te th tl tr ug uk ur vi vo wa xh zh zu"""
LANGUAGES = frozenset(_CODES.split())
"""Codes (ISO 639-1) of the languages that are identified."""

INCLUDED_LANGUAGES = {"no": ("nb", "nn"), "nb": ("no",)}
"""Language that a recipe lists -> other codes under which its texts are identified: `no` is what most Bokmål is."""


def identified_as(language: str) -> tuple[str, ...]:
    """Return the codes under which texts of a language that a recipe lists are identified."""
    return (language, *INCLUDED_LANGUAGES.get(language, ()))


QUALITY = "quality"
"""Dropped: too unlike the good sources of the recipe, by the classifier and GPT-3's rule, which are applied last."""

PERSONAL = ("secret", "email", "iban", "payment_card", "national_id", "ip_address", "phone")
"""Edits that replace personal data."""

PICTURES = ("emoji", "emoticons", "shortcodes", "stickers")
"""Edits of characters and codes that are shown as pictures; `clean.emoji` governs them."""

EDITS = (
    *("html_to_text", "mojibake", "wikitext", "entities", "nfc", "control_characters"),
    *("alt_texts", "markup", "homoglyphs"),
    *PICTURES,
    *PERSONAL,
    *("c4_citations", "c4_javascript_lines", "c4_policy_lines", "c4_unfinished_lines", "c4_short_lines"),
    *("repeated_lines", "spelling", "source_tag", "domain_tag"),
)

SPELLING = "spelling"
"""Corrects what the lists of the recipe name; in no preset."""

EDIT_LIMITS: dict[str, float] = {
    "c4_short_lines": 5,  # words, Raffel et al. 2020
    "repeated_lines": 3,  # equal lines in a row, which become one
}


@dataclass(frozen=True)
class Preset:
    """Names of the edits and rules that a document goes through."""

    edits: frozenset[str]
    rules: frozenset[str]


_REPAIR = frozenset({"html_to_text", "wikitext", "mojibake", "entities", "nfc", "control_characters"})
_PROSE = _REPAIR.union(PERSONAL, PICTURES) | {"alt_texts", "markup", "repeated_lines"}
_STRUCTURED = _PROSE - {"repeated_lines"}
_COMMON = frozenset({"kind_data", "kind_placeholders", "kind_checkboxes", "kind_empty_headings", "kind_repeated_lines"})
_TEXT = _COMMON | {"kind_letters", "kind_digits", "kind_links", "kind_content", "kind_open_end"}
_MESSAGES = _TEXT | {"kind_words", "kind_handles"}
_PAGES = _TEXT | {"kind_page_words", "kind_boilerplate"}
_GOPHER = frozenset(name for name in RULES if name.startswith("gopher_"))
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
        | {name for name in RULES if name.startswith("fineweb_")},
    ),
    "code": Preset(
        frozenset({"html_to_text", "control_characters", *PERSONAL}),
        frozenset(name for name in RULES if name.startswith("code_")) | {"kind_digits", "kind_data"},
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
        _STRUCTURED, frozenset({"kind_words", "kind_letters", "kind_links", "kind_data", "kind_placeholders"})
    ),
}
