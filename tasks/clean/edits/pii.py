"""Addresses, account numbers and cards become fixed placeholders; the replacement depends on the document alone.

The searches are narrow on purpose: an address needs its shape and borders, an IP must be public, an account number
(ISO 13616) and a card number (ISO/IEC 7812) must pass their check digits. Phone numbers, secrets and national ids are
in files of their own.
"""

import ipaddress
import re
from collections.abc import Callable

from stdnum import iban, luhn

from tasks.clean.document import CODE, DocumentContext
from tasks.clean.kernels.candidates import accounts_in, numbers_in

_WORDS = r"a-zA-Z0-9\u00c0-\u024f\u0370-\u058f\u05d0-\u05ea\u0620-\u064a\u0900-\u0dff\u10a0-\u10ff\u1e00-\u1fff"
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_LOCAL = re.compile(rf"(?:[{_WORDS}][{_WORDS}._%+-]{{0,63}}|[{_UNSPACED}0-9._-]{{1,32}})$")
_CHINESE_DOMAINS = (
    "中国|中國|公司|网络|網絡|广告|在线|商城|网址|我爱你|香港|台灣|台湾|机构|"
    "组织机构|集团|网店|手机|닷컴|한국|みんな|コム"
)
_LABEL = rf"[{_WORDS}{_UNSPACED}](?:[{_WORDS}{_UNSPACED}-]{{0,61}}[{_WORDS}{_UNSPACED}])?"
_LETTERS = _WORDS.replace("0-9", "")
_DOMAIN = re.compile(
    rf"(?:{_LABEL}\.)+(?:(?:xn--[a-zA-Z0-9-]{{2,59}}|[A-Za-z]{{2,24}})(?![A-Za-z0-9_-])"
    rf"|[{_LETTERS}]{{2,24}}(?![{_WORDS}_-])|{_CHINESE_DOMAINS})"
)

_FILE_SUFFIXES = frozenset(
    ("png", "jpg", "jpeg", "gif", "svg", "webp", "ico", "js", "css", "py", "html", "json", "xml", "md", "txt", "so",
     "dylib", "service")
)  # fmt: skip
_COUNTRIES = frozenset({"md", "py", "so"})
"""Those that are domains of countries, too: `lib@1.2.so` is a file, `jo@mill.so` an address."""

_NO_MAILBOXES = frozenset({"git", "hg", "svn", "this", "super"})
"""Shared accounts of code hosts, and words before a label of Kotlin: `this@MainActivity.finish()`."""
_IPV4 = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}")
_IPV6 = re.compile(r"[0-9A-Fa-f]{1,4}(?:::?[0-9A-Fa-f]{1,4}){2,7}")
_MAY_BE_IPV4 = re.compile(r"\.\d{1,3}\.\d")
_MAY_BE_IPV6 = re.compile(r":[0-9A-Fa-f]{0,4}:")
_MAX_VERSION_NUMBER = 20
_VERSION = re.compile(
    r"(?:\bv|\bver\.?|version|release|build|kernel|firmware|driver|верси[яию]|版本号?|versione|versión"
    r"|\bsections?|\bchapter|\bclause|§)[ =:.：\"“]*$|[=~<>!]= ?$",
    re.IGNORECASE,
)
_IP_WORD = re.compile(r"\bip(?:v4)?(?:[- ]?(?:address|adresse|адрес|地址))?\W{0,3}(?:is |was |is: )?$", re.IGNORECASE)

_SPACE = "[ \u00a0\u202f-]"
_CARD = re.compile(rf"\d(?:{_SPACE}?\d){{12,18}}", re.ASCII)
_CARD_GROUPS = re.compile(r"\d+|\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{4,5}")
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|220[0-4]\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[689]\d)\d{11}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}|(?:6011|64[4-9]\d|65\d\d)\d{12}"
    r"|(?:60|81|508)\d{13,14}|(?:5018|5020|5038|6304|6759|676[1-3])\d{8,15}"
)
_CARD_WORD = re.compile(
    r"card|visa|amex|credit|debit|carta|cart[eã]o|carte|tarjeta|karte|карт|卡|カード|카드|pay|master|mir|мир",
    re.IGNORECASE,
)
_OTHER_NUMBER = re.compile(
    r"order|invoice|isbn|issn|ean|upc|gtin|barcode|tracking|serial|imei|article|sku|заказ|артикул|штрих|накладн|订单|单号|"
    r"编号|条码|bestell|rechnung|artikel|ordine|fattura|articolo|commande|facture|pedido|factura|timestamp|hash|commit",
    re.IGNORECASE,
)
_SHORT_CARD = 14
_LEAST_DIGITS = 13
_LONGEST = 70
"""Characters of the longest IBAN, with a space between any two."""

_IBAN = re.compile(rf"(?<![A-Za-z0-9_])[A-Z]{{2}}\d{{2}}(?:{_SPACE}?[A-Za-z0-9]){{11,30}}", re.ASCII)
_SEPARATORS = re.compile(_SPACE)


def mask_emails(text: str, context: DocumentContext) -> str:
    """Replace `jane@example.org` by `<email>`; shared accounts of code hosts (`git@...`), labels and file names are
    kept, and in code products of matrices (`x@w.mean()`).

    Names and domains may be of any script (RFC 6531). In scripts without spaces a name begins where that script does.
    """
    is_code = CODE in (context.format, context.text_kind)
    pieces: list[str] = []
    done = 0
    at = text.find("@")
    while at >= 0:
        local = _LOCAL.search(text, max(done, at - 64), at)
        domain = _DOMAIN.match(text, at + 1)
        is_product = is_code and domain is not None and text.startswith(("(", "["), domain.end())
        if local and domain and not (is_product or _is_file(domain)) and local[0] not in _NO_MAILBOXES:
            pieces += (text[done : local.start()], "<email>")
            done = domain.end()
        at = text.find("@", at + 1)
    return "".join((*pieces, text[done:]))


def _is_file(domain: re.Match[str]) -> bool:
    *labels, suffix = domain[0].lower().split(".")
    return suffix in _FILE_SUFFIXES and (suffix not in _COUNTRIES or all(label[0].isdigit() for label in labels))


def mask_ip_addresses(text: str, _context: DocumentContext) -> str:
    """Replace public IPv4 and IPv6 addresses by `<ip_address>`; private ranges and version numbers are kept."""
    if _MAY_BE_IPV4.search(text):
        text = _IPV4.sub(_ipv4, text)
    return _IPV6.sub(_ipv6, text) if _MAY_BE_IPV6.search(text) else text


def _ipv4(match: re.Match[str]) -> str:
    text, start = match.string, match.start()
    if not is_isolated(text, start, match.end(), ".-") or _VERSION.search(text, max(0, start - 12), start):
        return match[0]
    if all(int(number) < _MAX_VERSION_NUMBER for number in match[0].split(".")) and not _IP_WORD.search(
        text, max(0, start - 20), start
    ):
        return match[0]  # 4.10.1.0 is a version or the number of a section.
    return "<ip_address>" if _is_public(match[0]) else match[0]


def _ipv6(match: re.Match[str]) -> str:
    is_alone = is_isolated(match.string, match.start(), match.end(), ":.")
    return "<ip_address>" if is_alone and _is_public(match[0]) else match[0]


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def mask_payment_cards(text: str, _context: DocumentContext) -> str:
    """Replace card numbers of 13 to 19 digits with a known issuer and a right check digit by `<payment_card>`.

    One number of ten has a right check digit by chance: digits without spaces need a word such as `card` nearby where
    they are as short as article numbers, and none such as `order`.
    """
    return _at_places(text, numbers_in(text, _LEAST_DIGITS), _CARD, _card)


def _at_places(
    text: str, places: list[tuple[int, int]], pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]
) -> str:
    """Return what `pattern.sub(replacement, text)` does, where all matches begin in `places`."""
    pieces: list[str] = []
    done = 0
    for begin, end in places:
        match = pattern.search(text, max(done, begin), max(end, begin + _LONGEST)) if end > done else None
        while match is not None and match.start() < end:
            pieces += (text[done : match.start()], replacement(match))
            done = match.end()
            match = pattern.search(text, done, end) if done < end else None
    return "".join((*pieces, text[done:])) if done else text


def _card(match: re.Match[str]) -> str:
    written = match[0].replace("\u00a0", " ").replace("\u202f", " ")
    digits = written.replace(" ", "").replace("-", "")
    if not (_ISSUERS.fullmatch(digits) and _CARD_GROUPS.fullmatch(written) and luhn.is_valid(digits)):
        return match[0]
    if not is_isolated(match.string, match.start(), match.end(), "-.,=") or len(set(digits)) == 1:
        return match[0]
    if written == digits and not _CARD_WORD.search(match.string, max(0, match.start() - 60), match.start()):
        is_other = _OTHER_NUMBER.search(match.string, max(0, match.start() - 30), match.start())
        if is_other or len(digits) <= _SHORT_CARD:
            return match[0]
    return "<payment_card>"


def mask_ibans(text: str, _context: DocumentContext) -> str:
    """Replace bank account numbers (IBAN) with the length and letters of their country and right check digits."""
    return _at_places(text, accounts_in(text), _IBAN, _iban)


def _iban(match: re.Match[str]) -> str:
    """Return `<iban>` and what follows it: a search by shape may also take the word behind."""
    written = match[0]
    for size in range(len(written), 14, -1):
        after = match.string[match.start() + size : match.start() + size + 1]
        if written[size - 1].isalnum() and not (after.isascii() and after.isalnum()):
            compact = _SEPARATORS.sub("", written[:size])
            if iban.is_valid(compact, check_country=False):
                return "<iban>" + written[size:]
    return written


def is_isolated(text: str, start: int, end: int, joining: str) -> bool:
    """Return whether text[start:end] is next to no letter, digit or `joining` character.

    A full stop or comma may end a sentence or clause. Letters count where they are ASCII:
    Chinese has no spaces around numbers.
    """
    before, after, next_after = text[start - 1 : start], text[end : end + 1], text[end + 1 : end + 2]
    if before and ((before.isascii() and (before.isalnum() or before == "_")) or before in joining):
        return False
    if not after or not ((after.isascii() and (after.isalnum() or after == "_")) or after in joining):
        return True
    return after in ".," and not next_after.isalnum()
