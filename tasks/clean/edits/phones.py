"""Phone numbers become `<phone>`, by the numbering plan of their country (`phonenumbers`, Google's libphonenumber).

A number with a country code is enough by itself. One without is a phone number where a word such as `tel.` or `电话` is
before it, or where it is written as people write numbers of a country of the document's language: with the digit for
calls between areas, in the groups of that country, or as a mobile number. Dates, years, prices, versions and what
follows words such as `order` or `ISBN` are no phone numbers.
"""

import functools
import itertools
import re

import phonenumbers
from phonenumbers import NumberParseException, PhoneNumber, PhoneNumberFormat, PhoneNumberType

from tasks.clean.document import DocumentContext
from tasks.clean.edits.pii import is_isolated
from tasks.clean.kernels.candidates import numbers_in
from tasks.common.text import replace_places

_CLOSED = re.compile(r"[(（]\+?[0-9 -]{1,7}[)）]")
_GROUP = re.compile(r"[0-9]+")
_LEAST_DIGITS, _MOST_DIGITS = 8, 15
_MOST_GROUPS = 8
_AMERICAN = re.compile(r"(?:1[-. ])?(?:\([0-9]{3}\)[ ]?[0-9]{3}[-. ][0-9]{4}|[0-9]{3}([-.])[0-9]{3}\1[0-9]{4})")

_BEGIN, _END = r"(?<![^\W_\u3400-\u9fff])", r"(?![^\W_0-9\u3400-\u9fff])"
"""Where a word begins and ends; Chinese characters may be next to it."""

_WORDS = frozenset(
    ("tel", "telephone", "phone", "ph", "cell", "cellphone", "mobile", "mob", "fax", "call", "dial", "sms",
     "hotline", "whatsapp", "viber", "telegram", "reach", "helpline", "tél", "téléphone", "telefon", "telefono",
     "telefonnummer", "rufnummer", "handy", "mobil", "mobilnummer", "durchwahl", "portable", "appeler",
     "appelez", "joindre", "cellulare", "recapito", "teléfono", "telefone", "móvil", "celular", "ligue",
     "telemóvel", "mobiel", "тел", "моб", "факс", "набрать", "вайбер", "ватсап", "телефонувати", "telefonnr",
     "mobilnr", "telefonszám", "thoại", "sđt", "telepon", "hubungi", "τηλ", "τηλέφωνο", "हेल्पलाइन", "फ़ोन",
     "फोन", "मोबाइल", "هاتف", "جوال", "اتصل", "تلفن", "موبایل", "טלפון", "נייד")
)  # fmt: skip
_STEMS = (
    "anruf", "chiam", "contatt", "llam", "telefoon", "komórk", "zadzwo", "телефон", "мобильн", "звон", "позвон",
    "набер", "сотов", "связ", "puhelin",
)  # fmt: skip
_OWNERS = frozenset(
    ("my", "her", "his", "mio", "suo", "mon", "son", "mi", "su", "meine", "ihre", "seine", "мой", "его", "её",
     "ее", "наш")
)  # fmt: skip
_NUMBERS = frozenset(["number", "numero", "numéro", "número", "nummer", "номер"])
_SIGNS = re.compile(
    "电话|電話|手机|手機|联系|聯繫|聯絡|热线|熱線|传真|傳真|致电|致電|拨打|撥打|微信|短信|座机|号码|號碼|携帯|連絡|合わせ|"
    "전화|연락|휴대폰|핸드폰|팩스|โทร|เบอร์|☎|📞|📱|☏"
)
_LETTERS = re.compile(r"[^\W\d_]+")
_OTHER = re.compile(
    rf"(?:{_BEGIN}(?:order|orders|invoice|isbn|issn|id|ids|no|ref|reference|ticket|case|version|build|serial|sku|ean|upc|imei|"
    r"article|item|model|part|doi|pmid|arxiv|rfc|pp?|pages?|vol|zip|postcode|account|tracking|patent|license|lot|batch|bug|issue|commit|"
    r"заказ\w*|артикул|инн|кпп|огрн|бик|снилс|сч[её]т\w*|код|индекс|накладн\w+|серийн\w+|bestell\w*|rechnung\w*|"
    r"kundennummer|artikel\w*|az|ordine|fattura|articolo|codice|commande|facture|référence|siret|siren|pedido|factura|"
    rf"referencia|qq|uid|pid|timestamp|unix){_END}|订单号?|單號|单号|编号|編號|编码|邮编|版本|型号|发票|账号|学号|工号|条码|注文|№|[#$€£¥₽₹])"
    r"[\s:：.#№=]{0,3}(?:is |number |nummer |номер |numero |número |no\.? |为|是|：)?\(?$",
    re.IGNORECASE,
)
_UNIT = re.compile(
    r"\s?(?:[%°€$£¥₽₹元円원]|(?:km|kg|m|mm|cm|ms|s|hz|mb|gb|kb|bytes?|eur|usd|rub|руб|млн|млрд|тыс|people|users|人|"
    r"万|亿|美元|million|billion|per)\b)",
    re.IGNORECASE,
)
_DATE = re.compile(
    r"(?:1[5-9]|20)[0-9][0-9][-./\u2013 ]{1,3}(?:0?[1-9]|1[0-2])[-./ ]{1,3}(?:0?[1-9]|[12][0-9]|3[01])(?:[^0-9]|$)"
    r"|(?:0?[1-9]|[12][0-9]|3[01])[-./ ]{1,3}(?:0?[1-9]|[12][0-9]|3[01])[-./ ]{1,3}(?:1[5-9]|20)[0-9][0-9](?:[^0-9]|$)"
    r"|(?:1[0-9]|20)[0-9][0-9][ ]?[-/\u2013][ ]?(?:1[0-9]|20)[0-9][0-9](?:[^0-9]|$)"
)
_POSTCODE = re.compile(r"[0-9]{5}-[0-9]{4}")
_STATE = re.compile(rf"{_BEGIN}[A-Z]{{2}}[,.]?\s[\s*#/%;>-]{{0,12}}$")
"""A postcode of the United States (ZIP+4), and the state before it, which may end a line of a comment."""
_CLAUSE = re.compile(r"252\.2[0-9]{2}-7[0-9]{3}")
"""A clause of the rules of purchase (DFARS) that licences quote."""
_DECIMAL = re.compile(r"[0-9]{1,6}\.[0-9]+|[0-9]{1,3}(?:\.[0-9]{3}){2,}|[0-9]+(?:\.[0-9]{1,3}){3,}")
_WORD_REACH = 32
_HAN = re.compile("[\u3400-\u9fff]")

_REGIONS = {
    "zh": "CN TW", "en": "US GB CA AU IN IE NZ ZA", "ru": "RU KZ BY UA", "de": "DE AT CH", "it": "IT CH",
    "fr": "FR BE CH CA", "es": "ES MX AR CO CL PE", "pt": "PT BR", "ja": "JP", "ko": "KR", "nl": "NL BE", "pl": "PL",
    "uk": "UA", "tr": "TR", "ar": "EG SA AE MA", "hi": "IN", "vi": "VN", "th": "TH", "id": "ID", "sv": "SE FI",
    "no": "NO", "nb": "NO", "nn": "NO", "da": "DK", "fi": "FI", "cs": "CZ", "sk": "SK", "el": "GR", "he": "IL",
    "hu": "HU", "ro": "RO MD", "fa": "IR", "bg": "BG", "hr": "HR", "sr": "RS", "sl": "SI", "ca": "ES", "bn": "BD IN",
    "ur": "PK", "ms": "MY", "tl": "PH", "lt": "LT", "lv": "LV", "et": "EE",
}  # fmt: skip
"""Countries by language, the largest first."""

_WIDELY = ("US", "GB", "DE", "FR", "IT", "ES", "RU", "CN", "JP", "IN", "BR", "NL", "AU")
"""Countries that are tried for a number behind a word such as `tel.` in any language."""

_USUAL_GROUPS = {
    "ES": ((3, 3, 3), (3, 2, 2, 2), (2, 3, 2, 2), (2, 3, 4)), "PL": ((3, 3, 3), (2, 3, 2, 2)), "CZ": ((3, 3, 3),),
    "SK": ((3, 3, 3),), "IT": ((3, 7), (3, 3, 4), (3, 3, 2, 2)), "RU": ((3, 3, 2, 2),), "IN": ((5, 5),),
    "PT": ((3, 3, 3), (2, 3, 2, 2)), "CN": ((3, 4, 4), (3, 8), (7, 4), (11,)), "MX": ((2, 4, 4), (3, 3, 4)),
}  # fmt: skip
"""How people group digits besides the way of `phonenumbers`; of the countries with (3, 3, 3), large numbers have points
between their groups or are taken for phone numbers."""

_PAIRS = re.compile(r"0[1-9](?:\.[0-9]{2}){4}")
_HEXADECIMAL = re.compile(r"(?<![^\W_])(?:[0-9][a-f]|[a-f][0-9])(?![^\W_])", re.IGNORECASE)


def mask_phones(text: str, context: DocumentContext) -> str:
    """Replace phone numbers by `<phone>`; see the head of this file for what counts as one."""
    regions = _regions(context)
    runs = numbers_in(text, _LEAST_DIGITS)
    phones = (place for begin, end in runs for place in _phones_in(text, begin, end, regions))
    return replace_places(text, ((begin, end, "<phone>") for begin, end in phones))


def _regions(context: DocumentContext) -> tuple[str, ...]:
    """Return countries of the document's language and of the last label of its domain."""
    suffix = context.domain.rpartition(".")[2].upper()
    regions = tuple(_REGIONS.get(context.base_language, "").split())
    suffix = "GB" if suffix == "UK" else suffix
    return (suffix, *regions) if suffix in phonenumbers.SUPPORTED_REGIONS and suffix not in regions else regions


def _phones_in(text: str, begin: int, end: int, regions: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the places of phone numbers among groups of digits that follow one another."""
    groups = [group.span() for group in _GROUP.finditer(text, begin, end)]
    found: list[tuple[int, int]] = []
    has_word = _has_word(text[max(0, begin - _WORD_REACH) : begin])
    place = 0
    while place < len(groups):
        start = groups[place][0]
        totals = itertools.accumulate(stop - first for first, stop in groups[place : place + _MOST_GROUPS])
        ends = [last for last, digits in enumerate(totals, place) if _LEAST_DIGITS <= digits <= _MOST_DIGITS + 2]
        opened = _opening(text, start)
        if text[opened] in "(（" and not _CLOSED.match(text, opened):
            opened += 1
        is_international = text[opened : opened + 2].lstrip("(（")[:1] in ("+", "＋") or text.startswith("00", start)
        # Long runs of numbers are tables, unless a word says otherwise.
        if is_international or has_word or len(groups) <= _MOST_GROUPS or place == 0:
            for last in reversed(ends):
                if _is_phone(text, opened, groups[last][1], regions, has_word, is_international):
                    found.append((opened, groups[last][1]))
                    place = last
                    break
        place += 1
    return found


def _has_word(before: str) -> bool:
    """Return whether a word for a phone number or a call is in the text before a number."""
    words = _LETTERS.findall(before.lower())
    if not _WORDS.isdisjoint(words) or any(word.startswith(_STEMS) for word in words):
        return True
    if not _OWNERS.isdisjoint(words) and not _NUMBERS.isdisjoint(words):
        return True
    return not before.isascii() and _SIGNS.search(before) is not None


def _opening(text: str, start: int) -> int:
    """Return where a number begins that may have `+`, `(` or both before its first digit."""
    for _ in range(2):
        if start and text[start - 1] in "+＋(（":
            start -= 1
    return start


def _is_phone(
    text: str, start: int, end: int, regions: tuple[str, ...], has_word: bool, is_international: bool
) -> bool:
    if not is_isolated(text, start, end, "-.+/=,_~" if text[start] not in "+＋" else "-.+=_"):
        return False
    written = text[start:end]
    if written.count("(") + written.count("（") != written.count(")") + written.count("）"):
        return False
    groups = _GROUP.findall(written)
    digits = "".join(groups)
    if len(set(digits)) == 1:
        return False
    if is_international:
        return _is_international(written, digits, groups, has_word)
    if _DATE.search(written) or _is_arithmetic(written):
        return False
    if (_POSTCODE.fullmatch(written) and _STATE.search(text, max(0, start - 16), start)) or _CLAUSE.fullmatch(written):
        return False
    return _is_national(text, start, end, groups, regions, has_word) and not _OTHER.search(
        text, max(0, start - 30), start
    )


def _is_national(text: str, start: int, end: int, groups: list[str], regions: tuple[str, ...], has_word: bool) -> bool:
    """Return whether a number without a country code is written like one of a country."""
    written, digits = text[start:end], "".join(groups)
    if _AMERICAN.fullmatch(written):
        return True
    if len(digits) > _MOST_DIGITS - 2 or (len(groups) == 2 and len(digits) == 8 and _looks_like_years(groups)):
        return False
    if _HAN.search(text, max(0, start - 8), end + 8) and "CN" not in regions:
        regions = (*regions, "CN")
    if _DECIMAL.fullmatch(written) and not _PAIRS.fullmatch(written):
        return False
    if has_word:
        return any(_valid(digits, region) for region in (*regions, *_WIDELY)) or any(
            _is_possible(digits, region) for region in regions[:3]
        )
    if _UNIT.match(text, end) or not _is_whole(text, start, end):
        return False
    return any(_is_written_as_in(region, groups, written) for region in regions)


def _is_arithmetic(written: str) -> bool:
    """Return whether a decimal point and a minus or slash between spaces are in it."""
    return (" - " in written or " / " in written) and "." in written


def _is_whole(text: str, start: int, end: int) -> bool:
    """Return whether no number with one space between, as in tables, and no byte as in hexadecimal dumps is beside."""
    before, after = text[max(0, start - 3) : start], text[end : end + 3]
    if before[-1:].isspace() and (before[-2:-1].isdigit() or _HEXADECIMAL.match(before)):
        return False
    return not (after[:1].isspace() and (after[1:2].isdigit() or _HEXADECIMAL.match(after, 1)))


def _is_international(written: str, digits: str, groups: list[str], has_word: bool) -> bool:
    """Return whether a number that begins with `+` or `00` has a country code, and is valid or at least possible."""
    has_plus = "+" in written or "＋" in written
    if not has_plus:
        if len(groups) == 1 and not has_word:
            return False
        digits = digits[2:]
    if digits.startswith("0"):
        return False
    number = _parsed(f"+{digits}", None)
    if number is None:
        return False
    if phonenumbers.is_valid_number(number):
        return True
    is_grouped = len(groups) > 1 and "." not in written
    return has_plus and (is_grouped or has_word) and phonenumbers.is_possible_number(number)


def _looks_like_years(groups: list[str]) -> bool:
    return all(1000 <= int(group) <= 2100 for group in groups)


@functools.lru_cache(maxsize=4096)
def _parsed(digits: str, region: str | None) -> PhoneNumber | None:
    try:
        return phonenumbers.parse(digits, region)
    except NumberParseException:
        return None


def _valid(digits: str, region: str) -> PhoneNumber | None:
    number = _parsed(digits, region)
    return number if number is not None and phonenumbers.is_valid_number_for_region(number, region) else None


def _is_possible(digits: str, region: str) -> bool:
    number = _parsed(digits, region)
    return number is not None and phonenumbers.is_possible_number(number)


def _is_written_as_in(region: str, groups: list[str], written: str) -> bool:
    """Return whether a valid number is written so that it is no other number: see the head of this file."""
    digits = "".join(groups)
    sizes = [len(group) for group in groups]
    is_trunk = (digits[0] == "0" and sizes[0] > 1) or (
        region in ("RU", "KZ", "BY") and digits[0] == "8" and len(digits) == 11
    )
    is_chinese_mobile = region == "CN" and len(digits) == 11 and digits[0] == "1"
    is_usual = tuple(sizes) in _USUAL_GROUPS.get(region, ())
    if is_chinese_mobile and not is_usual:
        return False
    if len(groups) == 1 and not is_trunk and not is_chinese_mobile:
        return False
    is_like_large_number = sizes[0] <= 3 and all(size == 3 for size in sizes[1:])
    if is_like_large_number and not is_trunk and ("." in written or not is_usual):
        return False
    number = _valid(digits, region)
    if number is None:
        return False
    if len(groups) == 1:
        return phonenumbers.number_type(number) == PhoneNumberType.MOBILE
    if not is_trunk and ("/" in written or (sizes == [5, 5] and " " not in written)):
        return False
    if is_trunk or is_usual or "(" in written or "（" in written:
        return True
    national = phonenumbers.format_number(number, PhoneNumberFormat.NATIONAL)
    return [len(group) for group in _GROUP.findall(national)] == sizes
