"""The same questions to every kind of vocabulary."""

import io
from collections import Counter

import pytest
import sentencepiece

from tasks.vocab.bpe import bare_processor
from tasks.vocab.candidates import CandidateVocabulary
from tasks.vocab.extenders import count_emitted, extend_to, keeps_base, kind_of, tokens_of_script, vocabulary_size
from tasks.vocab.scripts import SCRIPTS, Script

CHINESE = SCRIPTS["zh"]

BARE = Script(CHINESE.ranges, (), spaced=False)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def base(request: pytest.FixtureRequest) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([f"molten iron number {number} of {number * 7}" for number in range(300)]),
        model_writer=model,
        model_type=request.param,
        vocab_size=290,
        byte_fallback=True,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def test_a_row_that_the_text_never_uses_goes_to_another_candidate(base: bytes) -> None:
    """铁厂 is within 钢铁厂 alone: once that has a row, nothing is written with it, and 转炉 needs one."""
    runs = ["钢铁厂"] * 50 + ["转炉"] * 10
    characters = Counter("".join(runs))
    donor = CandidateVocabulary(characters, Counter({"钢铁厂": 50, "铁厂": 50, "转炉": 10}))
    extension = extend_to(base, donor, BARE, 8, lambda: runs)
    assert len(extension.added) == 8
    assert {"钢铁厂", "转炉"} <= set(extension.added)
    assert "铁厂" not in extension.added or kind_of(base) == "unigram"
    encoded = bare_processor(extension.model).encode(["钢铁厂", "转炉"], out_type=str)
    assert encoded == [["钢铁厂"], ["转炉"]]
    assert keeps_base(base, extension.model)


def test_rows_that_nobody_else_wants_stay_with_what_is_there(base: bytes) -> None:
    runs = ["钢铁厂"] * 50
    donor = CandidateVocabulary(Counter("".join(runs)), Counter({"钢铁": 50, "钢铁厂": 50}))
    assert len(extend_to(base, donor, BARE, 5, lambda: runs).added) == 5


def test_counts_and_pieces_of_a_script(base: bytes) -> None:
    extension = extend_to(
        base, CandidateVocabulary(Counter("钢铁"), Counter({"钢铁": 1})), BARE, 3, lambda: ["钢铁", "铁"]
    )
    assert vocabulary_size(extension.model) == vocabulary_size(base) + 3
    assert tokens_of_script(extension.model, CHINESE) == ["钢", "铁", "钢铁"]
    assert count_emitted(extension.model, ["钢铁", "铁", "铁"])[-3:].tolist() == [0, 2, 1]
