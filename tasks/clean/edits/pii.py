"""Personal data becomes fixed placeholders; the replacement depends on the document alone.

The searches are narrow on purpose: an address needs its shape and borders, an IP must be public, a card number must
pass the check digit of its issuers (ISO/IEC 7812), a phone number must be written as one.
"""

import ipaddress
import re

from tasks.clean.document import DocumentContext

_LOCAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}$")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+([A-Za-z]{2,24})(?![\w-])")

_FILE_SUFFIXES = frozenset(
    ("png", "jpg", "jpeg", "gif", "svg", "webp", "ico", "js", "css", "py", "html", "json", "xml", "md", "txt", "so",
     "dylib", "service")
)  # fmt: skip

_SHARED_ACCOUNTS = frozenset({"git", "hg", "svn"})
_IPV4 = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}")
_IPV6 = re.compile(r"[0-9A-Fa-f]{1,4}(?:::?[0-9A-Fa-f]{1,4}){2,7}")
_MAY_BE_IPV4 = re.compile(r"\.\d{1,3}\.\d")
_MAY_BE_IPV6 = re.compile(r":[0-9A-Fa-f]{0,4}:")
_MAX_VERSION_NUMBER = 20
_VERSION = re.compile(r"(?:\bv|version|release)[ =:.]?$", re.IGNORECASE)
_INTERNATIONAL_PHONE = re.compile(r"\+[1-9]\d{0,2}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){1,4}")
_NATIONAL_PHONE = re.compile(r"\(\d{3}\)[ ]?\d{3}[-. ]\d{4}|\d{3}([-.])\d{3}\1\d{4}")
_MAY_BE_NATIONAL_PHONE = re.compile(r"[-.)] ?\d{3}[-. ]\d{4}")
_CARD = re.compile(r"\d(?:[ -]?\d){12,18}")
_CARD_GROUPS = re.compile(r"\d+|\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{5}")

_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3[068]\d{12}|35\d{14}|6\d{15,18}"
)


def mask_emails(text: str, _context: DocumentContext) -> str:
    """Replace `jane@example.org` by `<email>`; shared accounts of code hosts (`git@...`) and file names are kept."""
    if "@" not in text:
        return text
    pieces: list[str] = []
    done = 0
    at = text.find("@")
    while at >= 0:
        local = _LOCAL.search(text, max(done, at - 64), at)
        domain = _DOMAIN.match(text, at + 1)
        if local and domain and domain[1].lower() not in _FILE_SUFFIXES and local[0] not in _SHARED_ACCOUNTS:
            pieces += (text[done : local.start()], "<email>")
            done = domain.end()
        at = text.find("@", at + 1)
    return "".join((*pieces, text[done:]))


def mask_ip_addresses(text: str, _context: DocumentContext) -> str:
    """Replace public IPv4 and IPv6 addresses by `<ip_address>`; private ranges and version numbers are kept."""
    if _MAY_BE_IPV4.search(text):
        text = _IPV4.sub(_ipv4, text)
    return _IPV6.sub(_ipv6, text) if _MAY_BE_IPV6.search(text) else text


def _ipv4(match: re.Match[str]) -> str:
    if not _is_isolated(match, ".-") or _VERSION.search(match.string, max(0, match.start() - 10), match.start()):
        return match[0]
    if all(int(number) < _MAX_VERSION_NUMBER for number in match[0].split(".")):
        return match[0]  # 4.10.1.0 is a version or the number of a section.
    return "<ip_address>" if _is_public(match[0]) else match[0]


def _ipv6(match: re.Match[str]) -> str:
    return "<ip_address>" if _is_isolated(match, ":.") and _is_public(match[0]) else match[0]


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def mask_phones(text: str, _context: DocumentContext) -> str:
    """Replace numbers with a country code, and ten-digit numbers grouped as in North America, by `<phone>`."""
    if "+" in text:
        text = _INTERNATIONAL_PHONE.sub(_phone, text)
    return _NATIONAL_PHONE.sub(_phone, text) if _MAY_BE_NATIONAL_PHONE.search(text) else text


def _phone(match: re.Match[str]) -> str:
    digits = sum(letter.isdigit() for letter in match[0])
    international = match[0].startswith("+")
    grouped = any(not letter.isdigit() for letter in match[0][1:])
    plausible = 8 <= digits <= 15 and (grouped or digits >= 10) if international else digits == 10
    return "<phone>" if plausible and _is_isolated(match, "-.+/=") else match[0]


def mask_payment_cards(text: str, _context: DocumentContext) -> str:
    """Replace card numbers of 13 to 19 digits with a known issuer and a right check digit by `<payment_card>`."""
    return _CARD.sub(_card, text)


def _card(match: re.Match[str]) -> str:
    digits = match[0].replace(" ", "").replace("-", "")
    if not (_ISSUERS.fullmatch(digits) and _CARD_GROUPS.fullmatch(match[0]) and passes_luhn(digits)):
        return match[0]
    return "<payment_card>" if _is_isolated(match, "-.,=") and len(set(digits)) > 1 else match[0]


def passes_luhn(digits: str) -> bool:
    """Return whether the digit sum, every second digit from the right doubled, is a multiple of ten (Luhn)."""
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + position % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _is_isolated(match: re.Match[str], joining: str) -> bool:
    """Return whether the match is next to no letter, digit or `joining` character; a full stop may end a sentence."""
    text, start, end = match.string, match.start(), match.end()
    before, after, next_after = text[start - 1 : start], text[end : end + 1], text[end + 1 : end + 2]
    if before and ((before.isascii() and (before.isalnum() or before == "_")) or before in joining):
        return False
    if not after or not ((after.isascii() and (after.isalnum() or after == "_")) or after in joining):
        return True
    return after == "." and not next_after.isalnum()
