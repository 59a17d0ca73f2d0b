"""Beginnings of documents as the page shows them: it is made to be shown around."""

from tasks.clean.about import About
from tasks.clean.personal_data import mask_emails, mask_ip_addresses, mask_payment_cards, mask_phones


def clip(text: str, characters: int) -> str:
    """The beginning of a text, without personal data."""
    shown = masked(text[: 2 * characters])
    return shown if len(shown) <= characters else shown[:characters] + "…"


def masked(text: str) -> str:
    """The text without addresses of mail and machines, phone and card numbers."""
    for mask in (mask_emails, mask_ip_addresses, mask_phones, mask_payment_cards):
        text = mask(text, About())
    return text
