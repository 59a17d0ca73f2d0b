"""Choose the defaults of a new recipe from sampled records: field roles, languages, vocabulary, network and budget.

Languages are identified by py3langid (langid.py, Lui and Baldwin 2012), whose model knows 97 languages.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_NAMES = ("text", "content", "body", "raw_content", "document", "article", "markdown", "code", "message")

ID_NAMES = ("id", "_id", "doc_id", "docid", "uuid", "uid", "guid", "key")

LANGUAGE_NAMES = ("lang", "language", "locale")

KNOWN_NAME_SHARE = 0.3
"""A field with a customary name is the text if its mean length is at least this share of the longest field's."""

SHORTEST_CHARS = 40
"""UTF-8 bytes below which no language is identified, because a guess from few words is unreliable."""

SNIFFED_CHARS = 2000
"""Characters of a text from which its language is identified."""

BYTES_PER_TOKEN = 3.5

BYTES_PER_PIECE = 300
"""Bytes of text for each vocabulary entry, so that rare entries occur often enough to be learnt."""

SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 512, 32_768

RESERVED_PIECES = 300
"""Special and byte tokens, and some merges."""

EPOCHS = 4

TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True)
class Fields:
    """Names of the fields by role; None where no field has it."""

    text: str | None
    id: str | None
    language: str | None
    all: tuple[str, ...]


def judge_fields(records: Sequence[Mapping[str, Any]]) -> Fields:
    """Return the roles of fields; the text is the longest string on average, or a long one with a customary name."""
    names = tuple(dict.fromkeys(name for record in records for name in record))
    lengths = {
        name: sum(len(record[name]) for record in records if isinstance(record.get(name), str)) / max(1, len(records))
        for name in names
    }
    longest = max(lengths.values(), default=0.0)
    customary = [name for name in TEXT_NAMES if lengths.get(name, 0.0) >= KNOWN_NAME_SHARE * longest > 0]
    text = customary[0] if customary else max(lengths, key=lambda name: lengths[name]) if longest else None
    ids = [name for name in ID_NAMES if name in names and name != text and _identifies(records, name)]
    languages = [name for name in LANGUAGE_NAMES if name in names]
    return Fields(text, ids[0] if ids else None, languages[0] if languages else None, names)


def _identifies(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [record.get(name) for record in records]
    usable = all(isinstance(value, str | int) and not isinstance(value, bool) and value != "" for value in values)
    return usable and len(set(values)) == len(values)


def count_languages(texts: Iterable[str]) -> Counter[str]:
    """Count texts by ISO 639-1 code, without texts that are too short."""
    found: Counter[str] = Counter()
    for text in texts:
        stripped = text.strip()
        if len(stripped.encode()) >= SHORTEST_CHARS:
            found[str(_identifier().classify(stripped[:SNIFFED_CHARS])[0])] += 1
    return found


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_pickled_model(MODEL_FILE)


@dataclass(frozen=True)
class Network:
    """The sizes of a network."""

    context: int
    layers: int
    heads: int
    width: int

    def parameters(self, vocab_size: int) -> int:
        """Return 12 L D^2 of the blocks plus V D of the embedding, to within a percent."""
        return 12 * self.layers * self.width**2 + vocab_size * self.width


NETWORKS = (
    Network(128, 2, 2, 64),
    Network(256, 4, 4, 128),
    Network(256, 4, 4, 224),
    Network(512, 6, 6, 384),
    Network(512, 8, 8, 512),
    Network(1024, 12, 12, 768),
    Network(1024, 24, 16, 1024),
)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a new recipe."""

    tokens: int
    vocab_size: int
    network: Network
    budget_tokens: int


def choose_sizes(text_bytes: float, characters: int) -> Sizes:
    """Return the largest network for which the text, read up to four times, has 20 tokens per parameter."""
    tokens = max(1, round(text_bytes / BYTES_PER_TOKEN))
    vocabulary = SMALLEST_VOCABULARY
    while vocabulary < LARGEST_VOCABULARY and 2 * vocabulary * BYTES_PER_PIECE <= text_bytes:
        vocabulary *= 2
    while vocabulary < RESERVED_PIECES + characters:
        vocabulary *= 2
    fed = tokens * EPOCHS / TOKENS_PER_PARAMETER
    network = max(
        (net for net in NETWORKS if net.parameters(vocabulary) <= fed), key=NETWORKS.index, default=NETWORKS[0]
    )
    budget = min(tokens * EPOCHS, TOKENS_PER_PARAMETER * network.parameters(vocabulary))
    return Sizes(tokens, vocabulary, network, max(budget, 2 * network.context))
