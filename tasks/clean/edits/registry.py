"""Every edit by name, with the feature flags that trigger it.

The function of an edit takes the text and the document's context, and returns the text, changed or not; those with a
limit take it as a third argument. The commonest have a kernel too, which does the same to many texts at once.

Two edits tag documents with their origin, `Source: NAME` or `URL: DOMAIN` on a line of its own, as in metadata
conditioning (Gao et al. 2025, MeCo). The tag is part of the text from then on: dedup sees it too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.clean.batch import BatchContext, Texts
from tasks.clean.document import DocumentContext
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
from tasks.clean.edits.national_ids import mask_national_ids
from tasks.clean.edits.phones import mask_phones
from tasks.clean.edits.pii import mask_emails, mask_ibans, mask_ip_addresses, mask_payment_cards
from tasks.clean.edits.secrets import mask_secrets
from tasks.clean.edits.unicode_repair import (
    compose,
    fold_homoglyphs,
    remove_invisible,
    rewrite_invisible,
    select_broken_texts,
    undo_entities,
    undo_mojibake,
)
from tasks.clean.edits.wikitext import WIKITEXT, wikitext_to_text
from tasks.clean.kernels import prefilter
from tasks.clean.presets import PICTURES, SPELLING

Rewrite = Callable[[Texts, np.ndarray, Any], tuple[np.ndarray, np.ndarray]]
HTML_TO_TEXT = "html_to_text"


@dataclass(frozen=True)
class Edit:
    """A named edit: `function(text, context)`, or `function(text, context, limit)` where it has a `limit`.

    It runs on texts with a flag of `trigger`. `rewrite(texts, rows, limit)`, where there is one, does the same to many
    texts (`Texts.rewrite`), and leaves those that need Python to the function.
    """

    name: str
    function: Callable[..., str]
    trigger: int = prefilter.ALWAYS
    limit: float | None = None
    rewrite: Rewrite | None = None
    format: str = ""
    """Documents of this format are edited whatever their flags."""

    def apply_to_many(self, texts: Texts, contexts: BatchContext, rows: np.ndarray) -> np.ndarray:
        """Edit the texts of `rows`; returns the rows whose text changed."""
        changed = [rows[:0]]
        if self.rewrite is not None:
            rewritten, rows = self.rewrite(texts, rows, self.limit)
            changed.append(rewritten)
        edited: dict[int, str] = {}
        for row in rows.tolist():
            text = texts.text(row)
            after = self.apply(text, contexts.at(row))
            if after is not text and after != text:
                edited[row] = after
        changed.append(texts.replace(edited))
        return np.concatenate(changed)

    @property
    def needs_language(self) -> bool:
        """Return whether the edit depends on the document's language; those of the user may."""
        return self.name in PICTURES or self.name in (SPELLING, "phone") or ":" in self.name

    def apply(self, text: str, context: DocumentContext) -> str:
        return self.function(text, context) if self.limit is None else self.function(text, context, self.limit)


def tag_domain(text: str, context: DocumentContext) -> str:
    """Put `URL: ` and the host of the document's URL before the text; where it has none, the source's name."""
    return f"URL: {context.domain}\n\n{text}" if context.domain else tag_source(text, context)


def tag_source(text: str, context: DocumentContext) -> str:
    """Put `Source: ` and the name of the source before the text."""
    return f"Source: {context.source}\n\n{text}"


EDIT_REGISTRY: dict[str, Edit] = {
    edit.name: edit
    for edit in (
        Edit("mojibake", undo_mojibake, prefilter.MOJIBAKE, rewrite=select_broken_texts),
        Edit("wikitext", wikitext_to_text, prefilter.WIKITEXT, format=WIKITEXT),
        Edit("entities", undo_entities, prefilter.AMPERSAND),
        Edit("nfc", compose, prefilter.COMPOSITION),
        Edit("control_characters", remove_invisible, prefilter.INVISIBLE_CHARACTER, rewrite=rewrite_invisible),
        Edit("alt_texts", images_to_alt_texts, prefilter.IMAGE),
        Edit("markup", remove_markup, prefilter.MARKUP),
        Edit("homoglyphs", fold_homoglyphs, prefilter.NON_ASCII),
        Edit("emoji", emoji_to_words, prefilter.EMOJI),
        Edit("emoticons", emoticons_to_words, prefilter.EMOTICON),
        Edit("shortcodes", shortcodes_to_words, prefilter.SHORTCODE),
        Edit("stickers", stickers_to_words, prefilter.STICKER),
        Edit("secret", mask_secrets, prefilter.SECRET),
        Edit("email", mask_emails, prefilter.AT),
        Edit("iban", mask_ibans, prefilter.ACCOUNT),
        Edit("payment_card", mask_payment_cards, prefilter.LONG_DIGIT_RUN),
        Edit("national_id", mask_national_ids, prefilter.DIGIT_RUN | prefilter.ACCOUNT),
        Edit("ip_address", mask_ip_addresses, prefilter.DOTTED_DIGITS | prefilter.COLON_GROUP),
        Edit("phone", mask_phones, prefilter.DIGIT_RUN),
        Edit("c4_citations", remove_citations, prefilter.CITATION),
        Edit("c4_javascript_lines", remove_javascript_lines, prefilter.JAVASCRIPT),
        Edit("c4_policy_lines", remove_policy_lines, prefilter.POLICY),
        Edit("c4_unfinished_lines", remove_unfinished_lines),
        Edit(
            "c4_short_lines",
            remove_short_lines,
            prefilter.ALWAYS | prefilter.UNSEGMENTED_SCRIPT,
            rewrite=rewrite_short_lines,
        ),
        Edit("repeated_lines", collapse_repeated_lines, prefilter.REPEATED_LINE),
        Edit("source_tag", tag_source),
        Edit("domain_tag", tag_domain),
    )
}
"""Name -> edit without its limit, in the order of `presets.EDITS`; HTML pages become text before all of them."""
