"""Keys, tokens and passwords become `<secret>`: they let a reader of the model into someone's account.

Tokens of the large services are known by their prefix and length, private keys by their armour, and passwords by the
word before them (`password = ...`, `api_key: ...`), where the value is neither a placeholder nor an expression and has
the entropy of something chosen by a machine or with care.
"""

import math
import re
from collections import Counter

from tasks.clean.document import DocumentContext
from tasks.clean.kernels.candidates import secrets_in

_TOKENS = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:
    (?P<issued>hf_(?=(?:[a-z]*[A-Z]){6})[A-Za-z]{34}(?![_-])|shpat_[0-9a-f]{32}|rubygems_[0-9a-f]{48}|pul-[0-9a-f]{40})
    |(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ABIA|ACCA)[A-Z0-9]{16}
    |gh[pousr]_[A-Za-z0-9]{36,251}
    |github_pat_[A-Za-z0-9_]{22,244}
    |glpat-[A-Za-z0-9_-]{20,64}
    |xox[abeoprs]-[A-Za-z0-9-]{10,250}
    |xapp-\d-[A-Za-z0-9-]{20,250}
    |sk-(?:proj-|ant-|or-|svcacct-|admin-)?[A-Za-z0-9_-]{20,200}
    |[sr]k_(?:live|test)_[A-Za-z0-9]{16,250}
    |AIza[A-Za-z0-9_-]{35}
    |ya29\.[A-Za-z0-9_-]{20,400}
    |GOCSPX-[A-Za-z0-9_-]{28}
    |SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}
    |(?:npm|hf|dop_v1|lin_api|shpat|rubygems)_[A-Za-z0-9]{30,100}
    |pypi-[A-Za-z0-9_-]{50,250}
    |(?:AC|SK)[0-9a-f]{32}
    |\d{8,10}:AA[A-Za-z0-9_-]{33}
    |eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{16,1000}
    )(?![A-Za-z0-9])""",
    re.VERBOSE,
)
"""Those `issued` are known by their form alone. Of 34 random letters fewer than six are capitals twice in a million
times, of a name in code nearly always."""

_RUN = re.compile(r"[A-Za-z0-9_-]{16,}")
_TOKEN_BEGINNING = re.compile(r"(?:SG\.|[0-9]{8,10}:)?[A-Za-z0-9_-]*$")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?P<what>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)-----(?:(?!-----)[\s\S]){0,20000}"
    r"(?:-----END (?P=what)-----)?"
)
_IN_ADDRESS = re.compile(r"(?<=://)([^\s/:@'\"<>]{0,64}):([^\s/@'\"<>]{3,128})$")
_NAMES = (
    r"pass(?:word|wd|phrase|wort)?|pwd|secret(?:[_ -]?(?:access)?[_ -]?key)?|(?:auth|access|refresh|bearer|api|bot|"
    r"session|id)?[_ -]?token|(?:api|access|private|account|master|encryption|signing|client|storage|subscription)"
    r"[_ -]?(?:key|secret)|apikey|credentials?|пароль|密码|密碼|口令|密钥|contraseña|mot de passe|passwort|kennwort|"
    r"clave|senha|parola d'ordine|wachtwoord|hasło|パスワード|비밀번호"
)
_NAME = re.compile(
    rf"(?:(?<![A-Za-z])|(?<=[a-z])(?=(?-i:[A-Z])))(?:{_NAMES})s?[\"'`*\]]{{0,3}}\s{{0,4}}:?$", re.IGNORECASE
)
# What is compared without quotation marks is an expression.
_VALUE = re.compile(r"(?:=>|==(?=\s{0,4}[\"'`])|=(?!=)|：|:=?)\s{0,4}[\"'`*]{0,3}([^\s\"'`<>,;，。；]{8,256})")
_LONGEST_NAME, _LONGEST_ADDRESS, _LONGEST_ARMOUR, _LONGEST_PREFIX = 48, 200, 50, 40
_EXPRESSION = re.compile(
    r"[$%{(\[*<]|(?:your|my|the|some|test|example|sample|dummy|fake|change|replace|todo|none|null|true|false|xxx+|os|"
    r"env|process|self|this|get|read|load|fetch|config|settings|args|request|params|https?|file)(?![A-Za-z0-9])|\.\.\.|"
    r"change_?me|your_?|xxx",
    re.IGNORECASE,
)
_MEASURE = re.compile(r"[0-9.,]+[A-Za-z/%]*")
_CALL = re.compile(r"[A-Za-z_][\w.]*[(\[]|[a-z_]+(?:\.[a-z_]+)+$|[A-Za-z_]+$")
_VARIABLE = re.compile(r"(?:[a-z]+_)+[a-z]*[0-9]{1,2}")
"""A name in code, which an assignment to a token or key has without quotation marks; a password may look like it."""

_ENTROPY = 2.6
"""Bits a character. `password1` has 2.95 and is left out by its lack of a third kind of character."""

_LEAST_CHARACTERS = 8


def mask_secrets(text: str, _context: DocumentContext) -> str:
    """Replace tokens, private keys, passwords in addresses and in assignments by `<secret>`."""
    pieces: list[str] = []
    done = 0
    for begin, _ in secrets_in(text):
        start, stop = _secret_at(text, begin) if begin >= done else (0, 0)
        if stop > done:
            # The password of an address may be a token, which is replaced already.
            if start >= done:
                pieces += (text[done:start], "<secret>")
            done = stop
    return "".join((*pieces, text[done:])) if done else text


def _secret_at(text: str, begin: int) -> tuple[int, int]:
    """Return where the secret at a place of `secrets_in` begins and ends; (0, 0) where there is none."""
    character = text[begin]
    if character in ":=：":
        return _assigned(text, begin)
    if character == "@":
        match = _IN_ADDRESS.search(text, max(0, begin - _LONGEST_ADDRESS), begin)
        is_secret = match is not None and not _EXPRESSION.match(match[2]) and match[2] not in ("password", "pass")
        return match.span() if match is not None and is_secret else (0, 0)
    if text.startswith("KEY-----", begin):
        opening = text.rfind("-----BEGIN ", max(0, begin - _LONGEST_ARMOUR), begin)
        match = _PRIVATE_KEY.match(text, opening) if opening >= 0 else None
        return match.span() if match is not None and match.end() > begin else (0, 0)
    beginning = _TOKEN_BEGINNING.search(text, max(0, begin - _LONGEST_PREFIX), begin)
    match = _TOKENS.match(text, beginning.start() if beginning is not None else begin)
    return match.span() if match is not None and match.end() > begin and _is_token(match) else (0, 0)


def _is_token(match: re.Match[str]) -> bool:
    is_known = match["issued"] is not None or match[0].startswith("AKIA")
    return is_known or any(_may_be_key(run) for run in _RUN.findall(match[0]))


def _may_be_key(run: str) -> bool:
    """Return whether a run of letters and digits is not made of words alone."""
    return any(map(str.isdigit, run)) and (run.startswith(("sk-", "dop_")) or any(map(str.isupper, run)))


def _assigned(text: str, separator: int) -> tuple[int, int]:
    """Return where the value behind a colon or equals sign begins and ends, if it is a secret and has its name."""
    value = _VALUE.match(text, separator)
    name = _NAME.search(text, max(0, separator - _LONGEST_NAME), separator)
    if value is None or name is None:
        return 0, 0
    # Brackets, full stops and the like behind the value belong to the sentence.
    secret = value[1].rstrip(").]}!?:")
    is_bare = text[value.start(1) - 1] not in "\"'`*"
    if is_bare and re.search("token|key", name[0], re.IGNORECASE) and _VARIABLE.fullmatch(secret):
        return 0, 0
    return (value.start(1), value.start(1) + len(secret)) if is_secret(secret) else (0, 0)


def is_secret(value: str) -> bool:
    """Return whether a value has the form and entropy of a password or key, and not of a placeholder or expression."""
    if (
        len(value) < _LEAST_CHARACTERS
        or _EXPRESSION.match(value)
        or _CALL.match(value)
        or "://" in value
        or _MEASURE.fullmatch(value)
    ):
        return False
    kinds = (
        any(character.islower() for character in value),
        any(character.isupper() for character in value),
        any(character.isdigit() for character in value),
        any(not character.isalnum() for character in value),
    )
    if not kinds[2] or sum(kinds) < 2 or (sum(kinds) == 2 and len(value) < 12):
        return False
    return entropy(value) >= _ENTROPY


def entropy(value: str) -> float:
    """Return the entropy of the distribution of a string's characters, in bits a character."""
    return -sum(count / len(value) * math.log2(count / len(value)) for count in Counter(value).values())
