"""Languages of texts, by py3langid (Lui and Baldwin 2012, langid.py): 97 languages, a model that comes with it."""

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any

SHORTEST_CHARS = 40
"""Shorter texts are not judged; on a few words the guess is a coin."""
LOOKED_CHARS = 2000


def count_languages(texts: Iterable[str]) -> Counter[str]:
    """ISO 639-1 code -> texts in it; texts too short to judge are left out."""
    found: Counter[str] = Counter()
    for text in texts:
        stripped = text.strip()
        if len(stripped.encode()) >= SHORTEST_CHARS:
            found[str(_identifier().classify(stripped[:LOOKED_CHARS])[0])] += 1
    return found


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_pickled_model(MODEL_FILE)
