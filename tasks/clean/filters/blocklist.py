"""The deny-list: documents that must not be learned from, by domain, id or hash.

The list is a file of lines `domain example.org`, `id HEX`, `hash HEX` (`#` begins a comment), or is written in the
recipe. An id is a document's, as `bessemer data history` shows it; a hash is BLAKE3-128 of the text, as it was read or
was cleaned. A domain includes its subdomains, and is the same in letters and in Punycode. Every removal has its row in
the ledger. The list is part of the stage's identity, so that a new entry also reaches documents that an earlier run
kept.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from model.digests import digest_bytes
from model.errors import InputError, RecipeError
from tasks.clean.config import DenyConfig
from tasks.clean.user_lists import read_list

KINDS = ("domain", "id", "hash")
_HEX = re.compile(r"[0-9a-fA-F]{32}")
_DOMAIN = re.compile(r"[^\s/:@]+\.[^\s/:@.]+")


@dataclass(frozen=True)
class DenyList:
    """Domains, document ids and text digests that are denied."""

    domains: frozenset[str] = frozenset()
    ids: frozenset[bytes] = frozenset()
    hashes: frozenset[bytes] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.domains or self.ids or self.hashes)

    def match(self, doc_id: bytes, domain: str, text_digest: bytes) -> tuple[str, str] | None:
        """Return (rule, matching entry) for a document that is denied; None for any other."""
        if doc_id in self.ids:
            return "deny_id", doc_id.hex()
        if text_digest in self.hashes:
            return "deny_hash", text_digest.hex()
        labels = _host(domain).split(".") if self.domains and domain else []
        for start in range(len(labels)):
            entry = ".".join(labels[start:])
            if entry in self.domains:
                return "deny_domain", entry
        return None

    def digest(self) -> str:
        """Return BLAKE3-128 over all entries, whatever their order."""
        words = sorted(
            [f"domain {domain}" for domain in self.domains]
            + [f"id {doc_id.hex()}" for doc_id in self.ids]
            + [f"hash {digest.hex()}" for digest in self.hashes]
        )
        return digest_bytes("\n".join(words).encode())


def read_deny_list(config: DenyConfig) -> DenyList:
    """Return the entries of the recipe and of its file; raises InputError or RecipeError for one that is malformed."""
    entries: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for kind, values in (("domain", config.domains), ("id", config.ids), ("hash", config.hashes)):
        form = "a host name such as example.org" if kind == "domain" else "32 hexadecimal digits"
        for value in values:
            if not _is_entry(kind, value):
                raise RecipeError(f"clean.deny: `{value}` is not a valid {kind}; write {form}")
            entries[kind].add(_one_form(kind, value))
    for kind, value in _read_entries(config.path) if config.path is not None else ():
        entries[kind].add(_one_form(kind, value))
    return DenyList(
        frozenset(entries["domain"]),
        frozenset(map(bytes.fromhex, entries["id"])),
        frozenset(map(bytes.fromhex, entries["hash"])),
    )


def _one_form(kind: str, value: str) -> str:
    return _host(value) if kind == "domain" else value.lower()


def _host(domain: str) -> str:
    """Return the one form of a host name: without a final dot, in lower case, in letters where it was written in
    Punycode (RFC 3492), as addresses of pages are and lists often are not."""
    return ".".join(map(_letters, domain.rstrip(".").lower().split(".")))


def _letters(label: str) -> str:
    if not label.startswith("xn--"):
        return unicodedata.normalize("NFKC", label)
    try:
        return label.removeprefix("xn--").encode("ascii").decode("punycode")
    except UnicodeError:
        return label


def _read_entries(path: str) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(read_list("clean.deny.path", path), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] not in KINDS or not _is_entry(words[0], words[1]):
            raise InputError(
                f"{path}, line {number}: `{line.strip()}` is not a deny-list entry; write `domain example.org`,"
                f" `id HEX` or `hash HEX` (32 hexadecimal digits)"
            )
        yield words[0], words[1]


def _is_entry(kind: str, value: str) -> bool:
    return bool((_DOMAIN if kind == "domain" else _HEX).fullmatch(value))
