"""Numbers that identify a person to the state become `<national_id>`, where their check digits are right.

The checks are those of python-stdnum. Where they alone would take one number of ten or of a hundred for an id, a word
for it must be nearby, such as `SSN` or `ИНН`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from stdnum.be import nn
from stdnum.br import cpf
from stdnum.ca import sin
from stdnum.cl import rut
from stdnum.cn import ric
from stdnum.cz import rc
from stdnum.de import idnr as german_idnr
from stdnum.dk import cpr
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.in_ import aadhaar
from stdnum.it import codicefiscale
from stdnum.kr import rrn
from stdnum.mx import curp
from stdnum.nl import bsn
from stdnum.no import fodselsnummer
from stdnum.pl import pesel
from stdnum.pt import nif
from stdnum.ro import cnp
from stdnum.ru import inn
from stdnum.se import personnummer
from stdnum.tr import tckimlik
from stdnum.us import ssn
from stdnum.za import idnr as african_idnr

from tasks.clean.document import DocumentContext
from tasks.clean.edits.pii import is_isolated
from tasks.clean.kernels.candidates import accounts_in, numbers_in
from tasks.common.text import replace_places

_LEAST_DIGITS = 8
_GROUP = re.compile(r"[0-9]+")
_REACH = 48
"""Characters before a number in which its word must be."""


@dataclass(frozen=True)
class NationalId:
    """A pattern, the check of its digits, and the words of which one must be before it (None: the check is enough)."""

    pattern: re.Pattern[str]
    check: Callable[[str], bool]
    words: re.Pattern[str] | None = None


def passes_snils(number: str) -> bool:
    """Return whether the last two digits of a Russian SNILS are the sum of the others by place, modulo 101."""
    digits = [int(character) for character in number if character.isdigit()]
    total = sum(digit * (9 - place) for place, digit in enumerate(digits[:9]))
    return len(digits) == 11 and total % 101 % 100 == digits[9] * 10 + digits[10]


_TAIWAN_LETTERS = "ABCDEFGHJKLMNPQRSTUVXYWZIO"


def passes_taiwan(number: str) -> bool:
    """Return whether the check digit of a Taiwanese id (a letter and nine digits) is right."""
    area = _TAIWAN_LETTERS.index(number[0]) + 10
    digits = [area // 10, area % 10, *map(int, number[1:])]
    return (
        sum(digit * weight for digit, weight in zip(digits, (1, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1), strict=True)) % 10 == 0
    )


def _is_chinese(number: str) -> bool:
    try:
        return ric.is_valid(number)
    except KeyError:  # what python-stdnum raises for a county that never existed
        return False


def _is_nino(number: str) -> bool:
    return number[:2] not in ("BG", "GB", "NK", "KN", "TN", "NT", "ZZ")


def _of(pattern: str, check: Callable[[str], bool], words: str = "") -> NationalId:
    return NationalId(re.compile(pattern, re.ASCII), check, re.compile(words, re.IGNORECASE) if words else None)


_IDS = (
    _of(r"[1-9]\d{5}[ ]?(?:19|20)\d{6}[ ]?\d{3}[\dXx]", _is_chinese),
    _of(
        r"[A-Z]{6}[0-9LMNPQRSTUV]{2}[ABCDEHLMPRST][0-9LMNPQRSTUV]{2}[A-Z][0-9LMNPQRSTUV]{3}[A-Z]",
        codicefiscale.is_valid,
    ),
    _of(r"[A-Z]{4}\d{6}[HMX][A-Z]{5}[A-Z0-9]\d", curp.is_valid),
    _of(r"[1278][ ]?\d{2}[ ]?(?:0[1-9]|1[0-2]|[2-9]\d)[ ]?(?:\d{2}|2[AB])[ ]?\d{3}[ ]?\d{3}[ ]?\d{2}", nir.is_valid),
    _of(r"\d{3}-\d{3}-\d{3}[ -]\d{2}", passes_snils),
    _of(r"\d{11}", passes_snils, r"снилс|snils"),
    _of(r"\d{12}|\d{10}", inn.is_valid, r"\bинн|\binn\b"),
    _of(r"\d{2} ?\d{2} ?\d{6}", lambda _number: True, r"паспорт\w* .{0,20}(?:сери|номер|№|:)|паспорт\w*:? $"),
    _of(r"\d{3}[- ]\d{2}[- ]\d{4}|\d{9}", ssn.is_valid, r"\bssn\b|social security|соцстрах|社会安全|seguro social"),
    _of(r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]", _is_nino, r"national insurance|\bnino?\b"),
    _of(r"\d{2} ?\d{3} ?\d{3} ?\d{3}", german_idnr.is_valid, r"steuer|\bidnr|\bst-?id|tax id|\btin\b|identifikationsn"),
    _of(r"\d{8}-?[A-Z]", dni.is_valid),
    _of(r"[XYZ]-?\d{7}-?[A-Z]", nie.is_valid),
    _of(r"\d{3}\.\d{3}\.\d{3}-\d{2}", cpf.is_valid),
    _of(r"\d{11}", cpf.is_valid, r"\bcpf\b"),
    _of(r"\d{11}", pesel.is_valid, r"pesel"),
    _of(r"\d{9}", bsn.is_valid, r"\bbsn\b|burgerservice|sofinummer"),
    _of(r"(?:\d{2})?\d{6}-?\d{4}", personnummer.is_valid, r"personn(?:umme)?r|samordningsn|swedish id"),
    _of(r"\d{6}-\d{3}[0-9A-Y]", hetu.is_valid),
    _of(r"\d{6}-?\d{4}", cpr.is_valid, r"\bcpr\b|personnummer"),
    _of(r"\d{6} ?\d{5}", fodselsnummer.is_valid, r"f[øo]dselsn|personnummer|fnr"),
    _of(r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}", nn.is_valid),
    _of(r"\d{11}", nn.is_valid, r"rijksregister|registre national|\bnn\b|insz|niss"),
    _of(r"\d{3} ?\d{3} ?\d{3}", nif.is_valid, r"\bnif\b|contribuinte"),
    _of(r"\d{11}", tckimlik.is_valid, r"kimlik|\btckn?\b|t\.?c\.? no"),
    _of(r"\d{4}[ -]?\d{4}[ -]?\d{4}", aadhaar.is_valid, r"aadh?aar|आधार|uidai"),
    _of(r"\d{6}-[1-8]\d{6}", rrn.is_valid),
    _of(r"\d{13}", african_idnr.is_valid, r"\bid\b|identity|south african"),
    _of(r"[A-Z][12]\d{8}", passes_taiwan, r"身[分份][證证]|national id|id (?:card|no|number)|統一編號|taiwan"),
    _of(r"\d{1,2}\.\d{3}\.\d{3}-[\dKk]", rut.is_valid),
    _of(r"\d{6}/\d{3,4}", rc.is_valid, r"rodn[éeá]|\br\.? ?č|birth number"),
    _of(r"\d{13}", cnp.is_valid, r"\bcnp\b|cod(?:ul)? numeric"),
    _of(r"\d{3}[- ]\d{3}[- ]\d{3}|\d{9}", sin.is_valid, r"\bsin\b|social insurance|assurance sociale|\bnas\b"),
)
"""China, Italy, Mexico, France, Russia (4), United States, United Kingdom, Germany, Spain (2), Brazil (2), Poland, the
Netherlands, Sweden, Finland, Denmark, Norway, Belgium (2), Portugal, Turkey, India, Korea, South Africa, Taiwan, Chile,
Czechia and Slovakia, Romania, Canada."""

_ALONE_FIRST = sorted(_IDS, key=lambda known: known.words is not None)
_ANY = re.compile(
    "|".join(f"(?:{known.pattern.pattern})(?![A-Za-z0-9])" for known in _ALONE_FIRST),
    re.ASCII,
)


def mask_national_ids(text: str, _context: DocumentContext) -> str:
    """Replace national identity, tax and insurance numbers of persons by `<national_id>`."""
    return replace_places(text, ((begin, _end_of_id(text, begin), "<national_id>") for begin in _beginnings(text)))


def _beginnings(text: str) -> list[int]:
    """Return where groups of digits, or capitals before them, begin that may be the beginning of an id."""
    places = {begin for begin, _ in accounts_in(text)}
    for begin, end in numbers_in(text, _LEAST_DIGITS):
        places.update(group.start() for group in _GROUP.finditer(text, begin, end))
    return sorted(places)


def _end_of_id(text: str, start: int) -> int:
    """Return where an id that begins at `start` ends, 0 where there is none."""
    if _ANY.match(text, start) is None:
        return 0
    before = text[max(0, start - _REACH) : start]
    for known in _ALONE_FIRST:
        match = known.pattern.match(text, start)
        if match is None or (known.words is not None and not known.words.search(before)):
            continue
        if is_isolated(text, start, match.end(), "-.+/=,_") and known.check(match[0]):
            return match.end()
    return 0
