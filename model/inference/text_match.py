"""Compare answers with correct ones by exact match and F1, as SQuAD does, and in Chinese as CMRC 2018 does.

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

_LETTER = re.compile(rf"[^\W\d_{_HAN}]")

CHINESE_SHARE = 0.25
"""Share of Chinese characters among a text's letters from which it counts as Chinese: Latin names have many letters."""


def is_chinese(text: str) -> bool:
    """Return whether a text is compared by its characters."""
    han = len(re.findall(f"[{_HAN}]", text))
    return han > 0 and han >= CHINESE_SHARE * (han + len(_LETTER.findall(text)))


def split_words(text: str) -> list[str]:
    """Return SQuAD's words: lower case without ASCII punctuation, then without a, an and the, split at whitespace."""
    return _ARTICLES.sub(" ", text.lower().translate(_ASCII_SIGNS)).split()


def split_segments(text: str) -> list[str]:
    """Return CMRC 2018's segments: each Chinese character, and other words whole, without its punctuation.

    Its program splits other text by NLTK's tokeniser; here numbers and words are whole and each remaining sign is a
    segment, which differs in contractions and abbreviations (do n't, u.s.).
    """
    return _SEGMENT.findall(_without_signs(text))


def is_exact_match(answer: str, right: str, *, chinese: bool) -> bool:
    """Return whether two texts have the same words, or in Chinese the same text without punctuation."""
    if chinese:
        return _without_signs(answer) == _without_signs(right)
    return split_words(answer) == split_words(right)


def f1_score(answer: str, right: str, *, chinese: bool) -> float:
    """Return the F1 of two texts: over words in any order, or in Chinese over their longest common run of segments.

    It is 1 where neither has any words, and 0 where only one has.
    """
    predicted, actual = (split_segments(one) if chinese else split_words(one) for one in (answer, right))
    if not predicted or not actual:
        return float(predicted == actual)
    common = _longest_run(predicted, actual) if chinese else sum((Counter(predicted) & Counter(actual)).values())
    return 2 * common / (len(predicted) + len(actual))


def best_of(answer: str, rights: Sequence[str], *, chinese: bool) -> tuple[float, float]:
    """Return the best exact match and F1 with any correct answer; without one the correct answer is the empty text."""
    # A correct answer of articles and punctuation alone counts as empty, as in SQuAD 2.0's program.
    spoken = [right for right in rights if (split_segments(right) if chinese else split_words(right))] or [""]
    exact = max(is_exact_match(answer, right, chinese=chinese) for right in spoken)
    return float(exact), max(f1_score(answer, right, chinese=chinese) for right in spoken)


def _without_signs(text: str) -> str:
    return text.lower().strip().translate(_CHINESE_SIGNS)


def _longest_run(one: list[str], other: list[str]) -> int:
    return SequenceMatcher(None, one, other, autojunk=False).find_longest_match().size
