"""Whether an answer is right, and how much of it: as SQuAD compares texts, and in Chinese as CMRC 2018 does.

Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250, and Rajpurkar et al. 2018 for questions without an answer;
Cui et al. 2019, https://arxiv.org/abs/1810.07366.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

_ARTICLES = re.compile(r"\b(a|an|the)\b")

_ASCII_SIGNS = str.maketrans("", "", string.punctuation)

_CHINESE_SIGNS = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")

_HAN = "\u4e00-\u9fa5"

_SEGMENT = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+(?:[.,'][^\W_{_HAN}]+)*|(?:[.…─—]){{2,}}|\S")

_SPOKEN_BY_LETTERS = re.compile(rf"[^\W\d_{_HAN}]")

CHINESE_SHARE = 0.25
"""Of a text's letters, from which on it counts as Chinese: Latin names take many letters, Chinese ones few."""


def is_chinese(text: str) -> bool:
    """Whether a text is compared by its characters."""
    han = len(re.findall(f"[{_HAN}]", text))
    return han > 0 and han >= CHINESE_SHARE * (han + len(_SPOKEN_BY_LETTERS.findall(text)))


def words_of(text: str) -> list[str]:
    """SQuAD's words: small letters without ASCII punctuation, then without a, an and the, split at blanks."""
    return _ARTICLES.sub(" ", text.lower().translate(_ASCII_SIGNS)).split()


def segments_of(text: str) -> list[str]:
    """CMRC 2018's segments: without its signs, each Chinese character alone, and what stands between as words.

    Its program cuts those by NLTK's tokeniser; here numbers and words are whole and each sign is one of its own, which
    differs in contractions and abbreviations (do n't, u.s.).
    """
    return _SEGMENT.findall(_without_signs(text))


def is_same(answer: str, right: str, *, chinese: bool) -> bool:
    """Exact match: the same words, or in Chinese the same text without signs."""
    if chinese:
        return _without_signs(answer) == _without_signs(right)
    return words_of(answer) == words_of(right)


def shared(answer: str, right: str, *, chinese: bool) -> float:
    """F1 of what two texts share: words in any order, or in Chinese the longest run of segments. Of two without any 1,
    where one has none 0."""
    said, there = (segments_of(one) if chinese else words_of(one) for one in (answer, right))
    if not said or not there:
        return float(said == there)
    common = _longest_run(said, there) if chinese else sum((Counter(said) & Counter(there)).values())
    return 2 * common / (len(said) + len(there))


def best_of(answer: str, rights: Sequence[str], *, chinese: bool) -> tuple[float, float]:
    """Exact match and F1 with the right answer that is nearest; without one the right answer is none."""
    # An answer of articles and signs alone says nothing, so that it is none (SQuAD 2.0's program).
    spoken = [right for right in rights if (segments_of(right) if chinese else words_of(right))] or [""]
    exact = max(is_same(answer, right, chinese=chinese) for right in spoken)
    return float(exact), max(shared(answer, right, chinese=chinese) for right in spoken)


def _without_signs(text: str) -> str:
    return text.lower().strip().translate(_CHINESE_SIGNS)


def _longest_run(one: list[str], other: list[str]) -> int:
    return SequenceMatcher(None, one, other, autojunk=False).find_longest_match().size
