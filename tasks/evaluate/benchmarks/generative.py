"""Forms of tasks that a network answers by writing: exact match, extracted answers, translations, summaries.

Text is the likeliest token by token, cut at a stop string. Extracted answers are compared as SQuAD does, in Chinese as
CMRC 2018 does (`model.inference.text_match`); translations by chrF and BLEU of sacrebleu, the field's reference (Post
2018); summaries by ROUGE (Lin 2004).
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from model.inference.text_match import best_of, is_chinese, is_exact_match
from tasks.evaluate.benchmarks.items import Item, words_of
from tasks.evaluate.benchmarks.multiple_choice import Figure, mean_with_error
from tasks.evaluate.benchmarks.prompts import Answered, Asker
from tasks.evaluate.config import Scoring

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")

BLEU_TOKENISERS = {"zh": "zh", "ja": "char", "ko": "char", "th": "char"}
"""sacrebleu's own for Chinese; for other scripts without blanks, and Korean, characters, which need no package."""


def last_number(text: str) -> str | None:
    """The last number in a text without thousands' commas and without zeros that say nothing; None without one."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    plain = found[-1].replace(",", "")
    whole, point, part = plain.partition(".")
    part = part.rstrip("0")
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    kept = f"{digits.lstrip('0') or '0'}{point if part else ''}{part}"
    return kept if kept == "0" else sign + kept


class _Written:
    """What all of them share: the text is asked for in the same way."""

    def ask(self, asker: Asker, item: Item, examples: Sequence[Item]) -> Answered | None:
        """The likeliest text behind the prompt."""
        return asker.written(item, examples)


class GenerationForm(_Written):
    """Exact match of what is written, or of the last number in it."""

    metric = "exact"

    def __init__(self, scoring: Scoring) -> None:
        self._number = scoring.extract == "last_number"

    def value(self, answered: Answered) -> float | None:
        """1 where the text is one of the right answers."""
        said = answered.text.strip()
        if self._number:
            number = last_number(said)
            return float(number is not None and any(number == last_number(one) for one in answered.item.answers))
        return float(any(is_exact_match(said, one, chinese=is_chinese(one)) for one in answered.item.answers))

    def figures(self, part: Sequence[Answered]) -> list[Figure]:
        """The share of exact matches."""
        values = [value for one in part if (value := self.value(one)) is not None]
        compared = "the last number of the written text" if self._number else "the written text, as SQuAD compares"
        return [Figure("exact", *mean_with_error(values), compared)]


class ExtractionForm(_Written):
    """An answer that stands in the passage: exact match and F1 with the nearest right answer."""

    def __init__(self, primary: str) -> None:
        self.metric = primary

    def value(self, answered: Answered) -> float | None:
        """F1, or exact match where that is primary."""
        exact, f1 = self._found(answered)
        return f1 if self.metric == "f1" else exact

    def figures(self, part: Sequence[Answered]) -> list[Figure]:
        """Both, as means over the questions."""
        found = [self._found(one) for one in part]
        named = {
            "f1": Figure("f1", *mean_with_error([f1 for _, f1 in found]), "of words, in Chinese of characters"),
            "exact": Figure("exact", *mean_with_error([exact for exact, _ in found]), "as SQuAD and CMRC compare"),
        }
        return [named.pop(self.metric), *named.values()]

    def _found(self, answered: Answered) -> tuple[float, float]:
        rights = answered.item.answers
        return best_of(answered.text.strip(), rights, chinese=is_chinese(answered.item.context or rights[0]))


class TranslationForm(_Written):
    """chrF of each sentence, and chrF and BLEU of the whole."""

    metric = "sentence_chrf"

    def __init__(self, scoring: Scoring) -> None:
        self._target = scoring.target

    def value(self, answered: Answered) -> float | None:
        """chrF of the sentence, 0 to 100, with the nearest right translation."""
        from sacrebleu.metrics.chrf import CHRF

        return CHRF().sentence_score(answered.text.strip(), list(answered.item.answers)).score

    def figures(self, part: Sequence[Answered]) -> list[Figure]:
        """The mean over sentences has an error; figures of the whole, as papers give them, have none."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        values = [value for one in part if (value := self.value(one)) is not None]
        bleu = BLEU(tokenize=self._tokeniser(part), effective_order=False)
        chrf = CHRF()
        said = [one.text.strip() for one in part]
        most = max((len(one.item.answers) for one in part), default=0)
        # Streams of references: the n-th of every sentence, none where it has fewer.
        right: Any = [[one.item.answers[n] if n < len(one.item.answers) else None for one in part] for n in range(most)]
        whole = {
            "chrf": (chrf.corpus_score(said, right).score, str(chrf.get_signature())) if part else (None, ""),
            "bleu": (bleu.corpus_score(said, right).score, str(bleu.get_signature())) if part else (None, ""),
        }
        return [
            Figure("sentence_chrf", *mean_with_error(values), "mean over sentences"),
            *(Figure(metric, value, None, f"of the whole; {note}") for metric, (value, note) in whole.items()),
        ]

    def _tokeniser(self, part: Sequence[Answered]) -> str:
        lang = self._target or next((one.item.lang for one in part if one.item.lang), None) or ""
        return BLEU_TOKENISERS.get(lang.partition("-")[0], "13a")


class SummaryForm(_Written):
    """ROUGE of what is written beside the right summary: F1 of words, of pairs of words, and of the longest common
    subsequence."""

    def __init__(self, primary: str) -> None:
        self.metric = primary

    def value(self, answered: Answered) -> float | None:
        """The primary ROUGE, 0 to 1, with the nearest right summary."""
        return self._best(answered, self.metric)

    def figures(self, part: Sequence[Answered]) -> list[Figure]:
        """All three as means over the texts."""
        order = [self.metric, *(name for name in ("rouge_1", "rouge_2", "rouge_l") if name != self.metric)]
        note = "F1 of words without stemming, of characters in scripts without blanks"
        return [Figure(name, *mean_with_error([self._best(one, name) for one in part]), note) for name in order]

    def _best(self, answered: Answered, name: str) -> float:
        said = words_of(answered.text)
        return max(rouge(said, words_of(right), name) for right in answered.item.answers)


def rouge(said: Sequence[str], right: Sequence[str], name: str) -> float:
    """F1 of what two texts share, 0 to 1 (Lin 2004): n-grams (`rouge_1`, `rouge_2`) or the longest common subsequence
    of words (`rouge_l`)."""
    if name == "rouge_l":
        shared, one, other = longest_common_subsequence(said, right), len(said), len(right)
    else:
        n = int(name[-1])
        first, second = (
            Counter(tuple(words[place : place + n]) for place in range(len(words) - n + 1)) for words in (said, right)
        )
        shared, one, other = (first & second).total(), first.total(), second.total()
    return 2 * shared / (one + other) if shared else 0.0


def longest_common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Its length."""
    row = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for place, there in enumerate(other, start=1):
            before, row[place] = row[place], before + 1 if word == there else max(row[place], row[place - 1])
    return row[-1]
