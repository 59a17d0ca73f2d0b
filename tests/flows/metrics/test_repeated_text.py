"""The sentence about held-out text that training read too, from the rows that evaluate writes."""

import numpy as np

from flows.metrics.heldout import describe_repeated_text
from tasks.evaluate.repeated_passages import add_parts
from tasks.evaluate.scores import HeldoutRows, Measurement


def rows(repeated: dict[str, list[bool]]) -> list[dict[str, object]]:
    """Return the rows of sources of four tokens of ten bytes: 20 bits each of the model, 30 of the 5-gram."""
    model, ngram = HeldoutRows(rounds=10, seed=1), HeldoutRows(rounds=10, seed=1)
    for source, part in repeated.items():
        lengths, parts = [np.full(4, 10)], [np.array(part)]
        for scores, prefix, bits in ((model, "", 20.0), (ngram, "5gram_", 30.0)):
            add_parts(scores, source, prefix, [np.full(4, bits)], lengths, parts)
            scores.add(source, f"{prefix}bits_per_byte", Measurement(bits / 10, None), 1, "40 bytes, 4 tokens")
    return [*model.scores().rows, *ngram.scores().rows]


def test_the_share_is_of_all_bytes_and_the_figures_are_those_of_new_text() -> None:
    found = describe_repeated_text(rows({"code": [True, False, False, False], "notes": [True, True, False, False]}))
    assert found == (
        "38% of the held-out text lies in passages of 16 tokens or more that training read too; of the text that is"
        " new, bits per byte are the model 2.000, the 5-gram 3.000"
    )


def test_a_small_share_is_not_called_none() -> None:
    found = describe_repeated_text([*rows({"code": [True, False, False, False]}), *rows({"n": [False] * 4}) * 99])
    assert found.startswith("<1% of the held-out text")


def test_without_repeated_text_there_is_nothing_to_say() -> None:
    assert describe_repeated_text(rows({"code": [False] * 4})) == ""
    assert describe_repeated_text([]) == ""
