"""Benchmark tasks that a network answers by generating text: exact match, extracted answers, translations, summaries.

Text is generated greedily and cut at a stop string. Extracted answers are compared as SQuAD compares them, Chinese ones
as CMRC 2018 does (`model.inference.text_match`); translations by chrF and BLEU of sacrebleu, the reference
implementation (Post 2018); summaries by ROUGE (Lin 2004).
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from model.inference.text_match import best_of, is_chinese, is_exact_match
from tasks.evaluate.benchmarks.items import UNSEGMENTED_LANGUAGES, words_of
from tasks.evaluate.benchmarks.multiple_choice import MetricValue
from tasks.evaluate.benchmarks.prompts import Asked, Requester, Response
from tasks.evaluate.config import Scoring
from tasks.evaluate.scores import Measurement, mean_with_error

_NUMBER = re.compile(r"(?:(?<![\w)])-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
"""A hyphen after a letter, a digit or a bracket is no sign: `20-3`, `pages 3-5`, `COVID-19`."""

BLEU_TOKENISERS = dict.fromkeys((*UNSEGMENTED_LANGUAGES, "ko"), "char") | dict.fromkeys(("zh", "yue", "wuu"), "zh")
"""sacrebleu's own tokeniser for Chinese; characters, which need no further package, for Korean and other scripts
without spaces."""


def last_number(text: str) -> str | None:
    """Return the last number in a text without thousands separators, leading and trailing zeros; None where there is
    none."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    plain = found[-1].replace(",", "")
    whole, point, part = plain.partition(".")
    part = part.rstrip("0")
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    kept = f"{digits.lstrip('0') or '0'}{point if part else ''}{part}"
    return kept if kept == "0" else sign + kept


class _GenerativeTask:
    """Request answers: the same for all tasks of this file."""

    def request(self, requester: Requester, asked: Sequence[Asked]) -> list[Response]:
        return requester.generate_all(asked)


class GenerationTask(_GenerativeTask):
    """Exact match of the generated text, or of the last number in it."""

    metric = "exact"

    def __init__(self, scoring: Scoring) -> None:
        self._number = scoring.extract == "last_number"

    def value(self, response: Response) -> float:
        text = response.text.strip()
        if self._number:
            number = last_number(text)
            return float(number is not None and any(number == last_number(one) for one in response.item.answers))
        return float(any(is_exact_match(text, one, chinese=is_chinese(one)) for one in response.item.answers))

    def metrics(self, part: Sequence[Response]) -> list[MetricValue]:
        values = [self.value(one) for one in part]
        compared = "the last number of the written text" if self._number else "the written text, as SQuAD compares"
        return [MetricValue("exact", mean_with_error(values), compared)]


class ExtractionTask(_GenerativeTask):
    """An answer that occurs in the passage: exact match and F1 with the nearest right answer."""

    def __init__(self, primary: str) -> None:
        self.metric = primary

    def value(self, response: Response) -> float:
        """Return F1, or exact match where that is the primary metric."""
        exact, f1 = self._found(response)
        return f1 if self.metric == "f1" else exact

    def metrics(self, part: Sequence[Response]) -> list[MetricValue]:
        found = [self._found(one) for one in part]
        named = {
            "f1": MetricValue("f1", mean_with_error([f1 for _, f1 in found]), "of words, in Chinese of characters"),
            "exact": MetricValue("exact", mean_with_error([exact for exact, _ in found]), "as SQuAD and CMRC compare"),
        }
        return [named.pop(self.metric), *named.values()]

    def _found(self, response: Response) -> tuple[float, float]:
        rights = response.item.answers
        return best_of(response.text.strip(), rights, chinese=is_chinese(response.item.context or rights[0]))


class TranslationTask(_GenerativeTask):
    """chrF of each sentence, and chrF and BLEU of the corpus."""

    metric = "sentence_chrf"

    def __init__(self, scoring: Scoring) -> None:
        self._target = scoring.target

    def value(self, response: Response) -> float:
        """Return chrF of the sentence, 0 to 100, with the nearest right translation."""
        from sacrebleu.metrics.chrf import CHRF

        return CHRF().sentence_score(response.text.strip(), list(response.item.answers)).score

    def metrics(self, part: Sequence[Response]) -> list[MetricValue]:
        """Return the mean over sentences with its standard error, and corpus scores, as papers report them, without
        one."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        values = [self.value(one) for one in part]
        found = [MetricValue("sentence_chrf", mean_with_error(values), "mean over sentences")]
        texts = [one.text.strip() for one in part]
        most = max((len(one.item.answers) for one in part), default=0)
        # sacrebleu takes the n-th references of all sentences as one list, with None where a sentence has fewer.
        right: Any = [[one.item.answers[n] if n < len(one.item.answers) else None for one in part] for n in range(most)]
        bleu = BLEU(tokenize=self._tokeniser(part), effective_order=False)
        for metric, scorer in (("chrf", CHRF()), ("bleu", bleu)):
            value = scorer.corpus_score(texts, right).score if part else None
            signature = scorer.get_signature() if part else ""
            found.append(MetricValue(metric, Measurement(value), f"of the whole; {signature}"))
        return found

    def _tokeniser(self, part: Sequence[Response]) -> str:
        lang = self._target or next((one.item.lang for one in part if one.item.lang), None) or ""
        return BLEU_TOKENISERS.get(lang.partition("-")[0].lower(), "13a")


class SummaryTask(_GenerativeTask):
    """ROUGE of the generated summary and the right one: F1 of words, of pairs of words, and of the longest common
    subsequence."""

    def __init__(self, primary: str) -> None:
        self.metric = primary

    def value(self, response: Response) -> float:
        """Return the primary ROUGE, 0 to 1, with the nearest right summary."""
        return self._best(response, self.metric)

    def metrics(self, part: Sequence[Response]) -> list[MetricValue]:
        order = [self.metric, *(name for name in ("rouge_1", "rouge_2", "rouge_l") if name != self.metric)]
        note = "F1 of words without stemming, of characters in scripts without blanks"
        return [MetricValue(name, mean_with_error([self._best(one, name) for one in part]), note) for name in order]

    def _best(self, response: Response, name: str) -> float:
        words = words_of(response.text)
        return max(rouge(words, words_of(right), name) for right in response.item.answers)


def rouge(text: Sequence[str], right: Sequence[str], name: str) -> float:
    """Return F1 of what two texts share, 0 to 1 (Lin 2004): n-grams (`rouge_1`, `rouge_2`) or the longest common
    subsequence of words (`rouge_l`)."""
    if name == "rouge_l":
        shared, one, other = longest_common_subsequence(text, right), len(text), len(right)
    else:
        n = int(name[-1])
        first, second = (Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1)) for words in (text, right))
        shared, one, other = (first & second).total(), first.total(), second.total()
    return 2 * shared / (one + other) if shared else 0.0


def longest_common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for i, compared in enumerate(other, start=1):
            before, row[i] = row[i], before + 1 if word == compared else max(row[i], row[i - 1])
    return row[-1]
