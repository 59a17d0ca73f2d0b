"""Every edit by name, with the sign without which it would change nothing and whether it needs the language.

The function of an edit takes the text and what is known of the document, and gives the text back, changed or not; those
with a limit take it as third argument. The commonest have a kernel besides, which does the same to many texts at once.

A tag before each document that says where it comes from, so that words with other meanings there can be told apart.

`Source: NAME` or `URL: DOMAIN` on a line of its own, as in metadata conditioning (Gao et al. 2025, MeCo). It is part of
the text from here on: dedup sees it too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.clean.batch import Abouts, Texts
from tasks.clean.document import About
from tasks.clean.edits.emoji import emoji_to_words, emoticons_to_words, shortcodes_to_words, stickers_to_words
from tasks.clean.edits.html import images_to_alt_texts, remove_markup
from tasks.clean.edits.lines import (
    collapse_repeated_lines,
    remove_citations,
    remove_javascript_lines,
    remove_policy_lines,
    remove_short_lines,
    remove_unfinished_lines,
    rewrite_short_lines,
)
from tasks.clean.edits.pii import mask_emails, mask_ip_addresses, mask_payment_cards, mask_phones
from tasks.clean.edits.unicode_repair import (
    compose,
    fold_homoglyphs,
    pass_sound_texts,
    remove_invisible,
    rewrite_invisible,
    undo_entities,
    undo_mojibake,
)
from tasks.clean.kernels import prefilter as signs
from tasks.clean.presets import PICTURES, SPELLING

EditFunction = Callable[..., str]

Rewrite = Callable[[Texts, np.ndarray, Any], tuple[np.ndarray, np.ndarray]]

_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Edit:
    """`function(text, about)`, or `function(text, about, limit)` where it has a `limit`; run when `sign` was seen.

    `rewrite(texts, rows, limit)`, where there is one, does it to many texts (`Texts.rewrite`), and leaves those that
    are too hard for it to the function.
    """

    name: str
    function: EditFunction
    sign: int = signs.ALWAYS
    limit: float | None = None
    rewrite: Rewrite | None = None

    def apply_to_many(self, texts: Texts, abouts: Abouts, rows: np.ndarray) -> np.ndarray:
        """Edit the texts of `rows`; returns those rows whose text is another one now."""
        changed = [_NO_ROWS]
        if self.rewrite is not None:
            rewritten, rows = self.rewrite(texts, rows, self.limit)
            changed.append(rewritten)
        edited: dict[int, str] = {}
        for row in rows.tolist():
            text = texts.text(row)
            after = self.apply(text, abouts.about(row))
            if after is not text and after != text:
                edited[row] = after
        changed.append(texts.replace(edited))
        return np.concatenate(changed)

    @property
    def needs_language(self) -> bool:
        """Whether names in the document's language are written or words of it corrected; those of the user may ask."""
        return self.name in PICTURES or self.name == SPELLING or ":" in self.name

    def apply(self, text: str, about: About) -> str:
        """The text after the edit."""
        return self.function(text, about) if self.limit is None else self.function(text, about, self.limit)


HTML_TO_TEXT = "html_to_text"


def tag_domain(text: str, about: About) -> str:
    """`URL: ` and the host of the document's address before the text; where it has none, the source's name."""
    return f"URL: {about.domain}\n\n{text}" if about.domain else tag_source(text, about)


def tag_source(text: str, about: About) -> str:
    """`Source: ` and the name of the source before the text."""
    return f"Source: {about.source}\n\n{text}"


EDIT_FUNCTIONS: dict[str, tuple[EditFunction, int]] = {
    "mojibake": (undo_mojibake, signs.MOJIBAKE),
    "entities": (undo_entities, signs.AMPERSAND),
    "nfc": (compose, signs.COMPOSITION),
    "control_characters": (remove_invisible, signs.UNSEEN_CHARACTER),
    "alt_texts": (images_to_alt_texts, signs.IMAGE),
    "markup": (remove_markup, signs.MARKUP),
    "homoglyphs": (fold_homoglyphs, signs.NON_ASCII),
    "emoji": (emoji_to_words, signs.EMOJI),
    "emoticons": (emoticons_to_words, signs.EMOTICON),
    "shortcodes": (shortcodes_to_words, signs.SHORTCODE),
    "stickers": (stickers_to_words, signs.STICKER),
    "email": (mask_emails, signs.AT),
    "ip_address": (mask_ip_addresses, signs.DOTTED_DIGITS | signs.COLON_GROUP),
    "phone": (mask_phones, signs.DIGIT_RUN),
    "payment_card": (mask_payment_cards, signs.LONG_DIGIT_RUN),
    "c4_citations": (remove_citations, signs.CITATION),
    "c4_javascript_lines": (remove_javascript_lines, signs.JAVASCRIPT),
    "c4_policy_lines": (remove_policy_lines, signs.POLICY),
    "c4_unfinished_lines": (remove_unfinished_lines, signs.ALWAYS),
    "c4_short_lines": (remove_short_lines, signs.ALWAYS | signs.SPACELESS_SCRIPT),
    "repeated_lines": (collapse_repeated_lines, signs.REPEATED_LINE),
    "source_tag": (tag_source, signs.ALWAYS),
    "domain_tag": (tag_domain, signs.ALWAYS),
}
"""Name -> function and sign, in the order of `presets.EDITS`; pages of HTML become text before all of them."""

REWRITES: dict[str, Rewrite] = {
    "mojibake": pass_sound_texts,
    "control_characters": rewrite_invisible,
    "c4_short_lines": rewrite_short_lines,
}


def edit_of(name: str, limit: float | None) -> Edit:
    """The edit of a name that `presets.EDITS` lists."""
    function, sign = EDIT_FUNCTIONS[name]
    return Edit(name, function, sign, limit, REWRITES.get(name))
