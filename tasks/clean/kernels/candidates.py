"""Places in a text where a number, an account or a secret may be: what the edits of personal data look at.

A regular expression of many alternatives that is tried at every character takes 30 to 900 ns a character; these kernels
take about 2. The feature scan (`tasks.clean.kernels.prefilter`) uses the same tests, so that an edit runs on no text
without a place.
"""

from collections.abc import Callable

import numpy as np

from model.kernels import kernel
from tasks.common.utf8 import byte_set, has_bytes

LONGEST_GAP = 3
"""Separators that may follow one another between the digits of one number."""

_LEAST_TOKEN = 16
_HUB_TOKEN = 35
"""Bytes of a token of Hugging Face from its underscore on."""
_LEAST_SECRET, _MOST_SECRET = 8, 256


def _codes(words: str) -> np.ndarray:
    return np.array([int.from_bytes(word.encode()) for word in words.split()], np.int64)


_TOKEN_PREFIXES = _codes(
    "AKI ASI ARO AID AGP ANP ABI ACC ghp gho ghu ghs ghr git glp xox xap sk- sk_ rk_ AIz ya2 GOC npm hf_ dop lin shp"
    " pul rub pyp eyJ"
)
"""The first three bytes of tokens (`tasks.clean.edits.secrets`)."""

_ENDS_OF_NAMES = _codes("rd wd se rt ss ds et ts ey ys en ns al ls ve ha ne")
"""The last two letters of words for passwords and keys (`tasks.clean.edits.secrets`), and of their plurals."""

_QUOTES = byte_set("\"'`*]")
_ENDS_OF_VALUES = byte_set("\"'`<>,;")

_MAY_BE_SECRET = byte_set("0123456789K@:=_")
"""Bytes at which `_find_secrets` looks closer, besides the first one of `：`."""

_KEY_ARMOUR = np.frombuffer(b"KEY-----", np.uint8).copy()


def numbers_in(text: str, least_digits: int) -> list[tuple[int, int]]:
    """Return where numbers of at least so many digits, and of 8, begin and end, in characters (`number_at`)."""
    return _places(text, lambda data, found: _find_numbers(data, least_digits, found))


def accounts_in(text: str) -> list[tuple[int, int]]:
    """Return where capitals before digits begin, as in an IBAN, and where those digits are so far, in characters."""
    return _places(text, _find_accounts)


def secrets_in(text: str) -> list[tuple[int, int]]:
    """Return where tokens may begin and end, and colons and equals signs between a name and a secret, in characters."""
    return _places(text, _find_secrets)


def _places(text: str, find: Callable[[np.ndarray, np.ndarray], int]) -> list[tuple[int, int]]:
    raw = text.encode()
    found = np.empty((len(raw) // 2 + 1, 2), np.int32)
    places = found[: find(np.frombuffer(raw, np.uint8), found)].tolist()
    if len(raw) == len(text):
        return [(begin, end) for begin, end in places]
    characters: list[tuple[int, int]] = []
    done = passed = 0
    for begin, end in places:
        passed += len(raw[done:begin].decode())
        size = len(raw[begin:end].decode())
        characters.append((passed, passed + size))
        done, passed = end, passed + size
    return characters


@kernel
def _find_numbers(data, least_digits, found):
    count = 0
    position = 0
    end = len(data)
    while position < end:
        if not ord("0") <= data[position] <= ord("9"):
            position += 1
            continue
        digits, after = number_at(data, 0, position, end)
        if digits >= least_digits:
            found[count] = position, after
            count += 1
        position = after
    return count


@kernel
def number_at(data, begin, position, end):
    """Return (digits, where the last one ends) of the number that begins at a digit.

    The digits are 0 for dates, years, decimals, ISBNs, digits between letters, and what is too short: no number by
    which an edit of personal data would look for more.
    """
    first = position
    last = position
    digits = gap = groups = size = separators = 0
    sizes = (0, 0, 0, 0)
    separator = np.int64(0)
    while position < end and gap <= LONGEST_GAP:
        width = 1
        if ord("0") <= data[position] <= ord("9"):
            digits += 1
            size = size + 1 if gap == 0 else 1
            if size == 1:
                groups += 1
            sizes = _with_size(sizes, groups, size)
            gap = 0
            last = position
        else:
            codepoint, width = _decode_separator(data, position, end)
            if not separates_digits(codepoint):
                break
            gap += 1
            if digits and groups == 1:
                separators += 1
                separator = codepoint
        position += width
    after = last + 1
    if digits < 8 or _is_other_number(data, first, digits, groups, sizes, separators, separator):
        return 0, after
    if groups == 1:
        is_in_word = first > begin and _joins_word(data[first - 1])
        is_before_word = after + 1 < end and _joins_word(data[after]) and _joins_word(data[after + 1])
        if is_in_word or is_before_word:
            return 0, after
    return digits, after


@kernel
def _with_size(sizes, groups, size):
    if groups == 1:
        return (size, sizes[1], sizes[2], sizes[3])
    if groups == 2:
        return (sizes[0], size, sizes[2], sizes[3])
    if groups == 3:
        return (sizes[0], sizes[1], size, sizes[3])
    return (sizes[0], sizes[1], sizes[2], size) if groups == 4 else sizes


@kernel
def _is_other_number(data, first, digits, groups, sizes, separators, separator):
    century = _two_digits(data, first)
    begins_with_year = 10 <= century <= 20 and sizes[0] == 4
    if groups == 1:
        # Dates and times without separators
        return digits >= 20 or ((digits == 8 or digits == 14) and 19 <= century <= 20)
    if groups == 2 and separators == 1 and separator == ord("."):
        return True
    if groups == 2 and begins_with_year and sizes[1] == 4:
        place = first + 4
        while not ord("0") <= data[place] <= ord("9"):
            place += 1
        return 10 <= _two_digits(data, place) <= 20
    if groups >= 3 and begins_with_year and sizes[1] == 2 and sizes[2] == 2 and separators == 1:
        return digits <= 10
    if groups == 5 and digits == 13 and sizes[0] == 3 and data[first] == ord("9") and data[first + 1] == ord("7"):
        return data[first + 2] >= ord("8")
    return groups == 4 and digits == 10 and sizes[0] == 1 and sizes[3] == 1


@kernel
def _two_digits(data, place):
    return 10 * (np.int64(data[place]) - ord("0")) + np.int64(data[place + 1]) - ord("0")


@kernel
def _decode_separator(data, position, end):
    """Return (code point, bytes) of a character of one to three bytes."""
    byte = np.int64(data[position])
    if 0xC0 <= byte < 0xE0 and position + 1 < end:
        return (byte & 0x1F) << 6 | data[position + 1] & 0x3F, 2
    if 0xE0 <= byte < 0xF0 and position + 2 < end:
        return (byte & 0x0F) << 12 | np.int64(data[position + 1] & 0x3F) << 6 | data[position + 2] & 0x3F, 3
    return byte, 1


@kernel
def separates_digits(codepoint):
    """Return whether a character may separate the digits of one number."""
    is_ascii = (
        codepoint == ord(" ") or ord("-") <= codepoint <= ord("/") or codepoint == ord("(") or codepoint == ord(")")
    )
    is_blank = codepoint == 0xA0 or codepoint == 0x202F
    is_dash = codepoint == 0x2010 or codepoint == 0x2011 or codepoint == 0x2013
    return is_ascii or is_blank or is_dash or codepoint == 0xFF08 or codepoint == 0xFF09


@kernel
def _find_accounts(data, found):
    count = digits = 0
    for position in range(len(data)):
        if not ord("0") <= data[position] <= ord("9"):
            digits = 0
            continue
        digits += 1
        if digits == 2 or digits == 7:
            begin = account_before(data, 0, position, len(data), digits)
            if begin >= 0:
                found[count] = begin, position + 1
                count += 1
    return count


@kernel
def account_before(data, begin, position, end, digits):
    """Return where an account begins whose second or seventh digit in a row is at a position; -1 where there is none.

    Two to six capitals are directly before two digits; or two capitals, a space, two digits, a space and a digit; or
    one capital is before seven digits, with a hyphen between or not.
    """
    last = position - digits
    is_spaced = last >= begin and ((data[last] == ord(" ") and digits == 2) or (data[last] == ord("-") and digits == 7))
    if is_spaced:
        last -= 1
    first = last
    while first >= begin and ord("A") <= data[first] <= ord("Z") and last - first < 7:
        first -= 1
    capitals = last - first
    if digits == 7:
        fits = capitals == 1
    elif is_spaced:
        fits = (
            capitals == 2
            and position + 2 < end
            and data[position + 1] == ord(" ")
            and ord("0") <= data[position + 2] <= ord("9")
        )
    else:
        fits = 2 <= capitals <= 6
    if not fits or (first >= begin and _joins_token(data[first]) and data[first] != ord("-")):
        return -1
    return first + 1


@kernel
def _find_secrets(data, found):
    count = 0
    size = len(data)
    token_end = 0
    position = 0
    while position < size:
        byte = data[position]
        if not _MAY_BE_SECRET[byte] and byte != 0xEF:
            position += 1
            continue
        if ord("0") <= byte <= ord("9") and position >= token_end:
            token, token_end = token_around(data, 0, position, size)
            if token >= 0 and (count == 0 or found[count - 1, 1] <= token):
                found[count] = token, token_end
                count += 1
        elif byte == ord("K") and ends_key(data, 0, position, size):
            if count == 0 or found[count - 1, 1] <= position:
                found[count] = position, position + 1
                count += 1
        elif byte == ord("@") and ends_password(data, 0, position):
            found[count] = position, position + 1
            count += 1
        elif (
            byte == ord(":")
            or byte == ord("=")
            or (byte == 0xEF and position + 2 < size and data[position + 1] == 0xBC and data[position + 2] == 0x9A)
        ):
            after = position + (3 if byte == 0xEF else 1)
            if assigns_secret(data, 0, position, after, size):
                found[count] = position, after
                count += 1
            position = after - 1
        elif byte == ord("_") and is_in_hub_token(data, 0, position, size):
            found[count] = position - 2, position + _HUB_TOKEN
            count += 1
        position += 1
    return count


@kernel
def _joins_word(byte):
    return ord("0") <= byte <= ord("9") or ord("a") <= byte | 32 <= ord("z") or byte == ord("_")


@kernel
def _joins_token(byte):
    return _joins_word(byte) or byte == ord("-")


@kernel
def token_around(data, begin, position, end):
    """Return (where it begins or -1 where it is no token, where it ends) for the run of letters and digits around a
    digit."""
    start = position
    while start > begin and _joins_token(data[start - 1]):
        start -= 1
    after = position
    while after < end and _joins_token(data[after]):
        after += 1
    if after - start < _LEAST_TOKEN:
        return -1, after
    code = np.int64(data[start]) << 16 | np.int64(data[start + 1]) << 8 | np.int64(data[start + 2])
    for prefix in _TOKEN_PREFIXES:
        if code == prefix:
            return start, after
    two = code >> 8
    third = data[start + 2]
    # AC or SK and hexadecimal digits; AA behind a colon; the second part of SG.x.y
    if (two == 0x4143 or two == 0x534B) and (ord("0") <= third <= ord("9") or ord("a") <= third <= ord("f")):
        return start, after
    if two == 0x4141 and start > begin and data[start - 1] == ord(":"):
        return start, after
    if (
        start - 3 >= begin
        and data[start - 1] == ord(".")
        and data[start - 2] == ord("G")
        and data[start - 3] == ord("S")
    ):
        return start, after
    return -1, after


@kernel
def is_in_hub_token(data, begin, position, end):
    """Return whether an underscore is that of `hf_` and 34 letters, a token of Hugging Face, which has no digit."""
    if position - 2 < begin or data[position - 1] != ord("f") or data[position - 2] != ord("h"):
        return False
    after = position + 1
    while after < end and ord("a") <= data[after] | 32 <= ord("z"):
        after += 1
    is_alone = position - 2 == begin or not _joins_token(data[position - 3])
    return is_alone and after - position == _HUB_TOKEN and (after == end or not _joins_token(data[after]))


@kernel
def ends_key(data, begin, position, end):
    """Return whether a K is in AKIA at its place, or begins the end of the armour of a private key."""
    if (
        position - 1 >= begin
        and data[position - 1] == ord("A")
        and position + 2 < end
        and data[position + 1] == ord("I")
    ):
        return data[position + 2] == ord("A")
    return has_bytes(data, position, end, _KEY_ARMOUR, 0, len(_KEY_ARMOUR))


@kernel
def ends_password(data, begin, position):
    """Return whether an at sign ends a user and a password in an address, as in `://user:password@`."""
    last = position - 1
    has_colon = False
    while (
        last > begin
        and position - last < 200
        and data[last] > ord(" ")
        and data[last] != ord("/")
        and data[last] != ord("@")
    ):
        has_colon |= data[last] == ord(":")
        last -= 1
    return (
        has_colon
        and last - 2 >= begin
        and data[last] == ord("/")
        and data[last - 1] == ord("/")
        and data[last - 2] == ord(":")
    )


@kernel
def assigns_secret(data, begin, position, following, end):
    """Return whether a colon or equals sign follows the end of a name of `_ENDS_OF_NAMES` (or of any word that is not
    ASCII), and a value of some length with a digit follows it."""
    last = position - 1
    skipped = 0
    while last >= begin and skipped < 8 and (data[last] <= ord(" ") or _QUOTES[data[last]] or data[last] == ord(":")):
        last -= 1
        skipped += 1
    if last - 1 < begin:
        return False
    if data[last] < 0x80 and data[last - 1] < 0x80:
        ending = np.int64(data[last - 1] | 32) << 8 | np.int64(data[last] | 32)
        is_name = False
        for known in _ENDS_OF_NAMES:
            is_name |= ending == known
        if not is_name:
            return False
    place = following
    skipped = 0
    while (
        place < end
        and skipped < 12
        and (
            data[place] <= ord(" ")
            or _QUOTES[data[place]]
            or ord("<") <= data[place] <= ord(">")
            or data[place] == ord(":")
        )
    ):
        place += 1
        skipped += 1
    value = place
    has_digit = False
    while place < end and place - value < _MOST_SECRET and data[place] > ord(" ") and not _ENDS_OF_VALUES[data[place]]:
        has_digit |= ord("0") <= data[place] <= ord("9")
        if has_digit and place - value + 1 >= _LEAST_SECRET:
            return True
        place += 1
    return False
