"""Whether a licence that is declared for a model goes with the licences of the text that it was trained on.

No court has settled whether a model is a work derived from its text. The rules here take the careful side, which costs
nobody a right: what a source asks of works made from it is asked of the model too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from model.errors import RecipeError

PERMISSIVE = re.compile(
    r"(MIT|ISC|Zlib|BSD-|0BSD|Apache-|CC0-|CC-BY-\d|CC-PDDC|PDDL-|ODC-By-|Unlicense|AFL-|PSF-|Python-|BSL-|W3C|"
    r"public[ -]domain)",
    re.IGNORECASE,
)
SHARE_ALIKE = re.compile(r"(CC-BY(?:-NC)?-SA|A?GPL|LGPL|GFDL|MPL|EUPL|ODbL|OSL|CDDL|EPL)(?:-|$)", re.IGNORECASE)
NON_COMMERCIAL = re.compile(r"-NC(-|$)|non-?commercial|research-only", re.IGNORECASE)
NO_DERIVATIVES = re.compile(r"-ND(-|$)", re.IGNORECASE)
_TOKEN = re.compile(r"[()]|[^\s()]+")
_VERSION = re.compile(r"-?(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Conflict:
    """A source whose licence does not let the model have the declared one."""

    source: str
    licence: str | None
    why: str


def check_licence(declared: str, sources: Mapping[str, str | None]) -> None:
    """Raises RecipeError where the licence declared for a model conflicts with those of its sources, by name."""
    found = conflicts(declared, sources)
    if not found:
        return
    told = "\n".join(f"  {one.source} ({one.licence or 'no licence stated'}): {one.why}" for one in found)
    raise RecipeError(
        f"licence {declared}: the model cannot be given this licence beside those of its sources:\n{told}\n"
        f"Declare a licence that they allow, leave these sources out and train again, state what is known"
        f" (`licence` of the source in the recipe), or export without --licence, which grants nothing."
    )


def conflicts(declared: str, sources: Mapping[str, str | None]) -> list[Conflict]:
    """The sources, in their order, whose licence stands against the declared one.

    A licence is an SPDX expression; of several joined by OR any one may be chosen, joined by AND all hold.
    """
    found: list[Conflict] = []
    for source, licence in sources.items():
        if licence is None:
            found.append(Conflict(source, None, "without a licence nothing is allowed"))
            continue
        why = _of_choices(_TOKEN.findall(licence), declared)
        if why:
            found.append(Conflict(source, licence, why))
    return found


def _of_choices(tokens: list[str], declared: str) -> str:
    """Why an expression stands against the declared licence; empty where one of its choices does not. Takes what it
    reads off `tokens`."""
    reasons = [_of_all(tokens, declared)]
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        reasons.append(_of_all(tokens, declared))
    return reasons[0] if all(reasons) else ""


def _of_all(tokens: list[str], declared: str) -> str:
    """The same of licences that hold together: the first reason."""
    reasons = [_of_one(tokens, declared)]
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        reasons.append(_of_one(tokens, declared))
    return next(filter(None, reasons), "")


def _of_one(tokens: list[str], declared: str) -> str:
    """The same of an expression in brackets, or of one licence with what is said behind WITH."""
    if tokens and tokens[0] == "(":
        tokens.pop(0)
        why = _of_choices(tokens, declared)
        if tokens:
            tokens.pop(0)
        return why
    words: list[str] = []
    while tokens and tokens[0] not in ("AND", "OR", "(", ")"):
        words.append(tokens.pop(0))
    return _against(" ".join(words), declared)


def _against(licence: str, declared: str) -> str:
    if NO_DERIVATIVES.search(licence):
        return "it allows no works made from it"
    if NON_COMMERCIAL.search(licence) and not NON_COMMERCIAL.search(declared):
        return f"it forbids commercial use, which {declared} allows"
    if SHARE_ALIKE.match(licence):
        return "" if _passes_on(licence, declared) else "works made from it are to have the same licence"
    if PERMISSIVE.match(licence) or NON_COMMERCIAL.search(licence):
        return ""
    return "nothing is known of this licence; write the SPDX identifier, such as CC-BY-4.0"


def _passes_on(licence: str, declared: str) -> bool:
    """Whether the declared licence is the source's own, or a later version of it."""
    mine, others = (_family(one) for one in (licence, declared))
    return mine[0] == others[0] and mine[1] <= others[1]


def _family(licence: str) -> tuple[str, float]:
    version = _VERSION.search(licence)
    name = _VERSION.sub("", licence, count=1).upper()
    for ending in ("-OR-LATER", "-ONLY", "+"):
        name = name.removesuffix(ending)
    return name, float(version[1]) if version else 0.0
