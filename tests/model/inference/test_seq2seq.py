"""Generation with a T5: with and without cache, batched and alone, and blanks filled in order."""

import time
from typing import Any

import pytest
import torch

from model.config.network import T5Config
from model.errors import InputError
from model.inference.generate import Sampling
from model.inference.seq2seq import DecoderTokens, SpanRule, allow_only, stream_target, write_targets
from model.nn.block import KeyValueCache
from model.nn.t5 import T5

VOCABULARY, STOP = 40, 1
WRITING = DecoderTokens(start=0, stop=STOP)
GREEDY = Sampling(temperature=0.0)
TEXTS = [[5, 6, 7, 8, 9, 1], [10, 11, 1], [12, 13, 14, 15, 16, 17, 18, 1], [19, 1]]


def make(**choices: object) -> T5:
    sizes = {"vocab_size": VOCABULARY, "layers": 2, "heads": 2, "width": 16, "tied_head": False}
    network = T5(T5Config.model_validate(sizes | choices)).initialise(4).eval()
    with torch.no_grad():
        # Other positions give other words, so that a wrong cache would show.
        network.embedding_decoder_distances.weight.normal_(0, 2, generator=torch.Generator().manual_seed(1))
    return network


@pytest.fixture(scope="module")
def network() -> T5:
    return make()


def whole_logits(network: T5, texts: list[list[int]], decoder_inputs: torch.Tensor) -> torch.Tensor:
    longest = max(map(len, texts))
    inputs = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    is_token = torch.arange(longest) < torch.tensor([len(text) for text in texts])[:, None]
    return network.logits(network.decode(decoder_inputs, network.encode(inputs, is_token), is_token))


def greedy_without_cache(network: T5, text: list[int], count: int) -> list[int]:
    written = [0]
    for _ in range(count):
        written.append(int(whole_logits(network, [text], torch.tensor([written]))[0, -1].argmax()))
        if written[-1] == STOP:
            return written[1:-1]
    return written[1:]


@pytest.mark.parametrize("pieces", [[1] * 9, [4, 1, 3, 1], [9]])
@pytest.mark.parametrize("choices", [{}, {"activation": "geglu_tanh", "head_size": 6, "tied_head": True}])
def test_targets_one_by_one_have_the_logits_of_a_whole_pass(pieces: list[int], choices: dict[str, object]) -> None:
    network = make(**choices)
    decoder_inputs = torch.randint(2, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(2))
    expected = whole_logits(network, TEXTS, decoder_inputs)
    longest = max(map(len, TEXTS))
    inputs = torch.tensor([text + [0] * (longest - len(text)) for text in TEXTS])
    is_token = torch.arange(longest) < torch.tensor([len(text) for text in TEXTS])[:, None]
    encoded, cache = network.encode(inputs, is_token), KeyValueCache()
    parts = [
        network.logits(network.decode(part, encoded, is_token, cache=cache)) for part in decoder_inputs.split(pieces, 1)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-5, rtol=1e-5)
    assert cache.length == 9


def test_greedy_text_is_that_without_a_cache_alone_and_among_others(network: T5) -> None:
    alone = [greedy_without_cache(network, text, 12) for text in TEXTS]
    assert write_targets(network, TEXTS, WRITING, max_new_tokens=12) == alone
    assert [list(stream_target(network, text, WRITING, GREEDY, max_new_tokens=12)) for text in TEXTS] == alone
    assert len({tuple(written) for written in alone}) > 1


def test_a_text_that_has_ended_is_left_while_others_go_on(network: T5) -> None:
    # Row 1 may write nothing, row 3 one token; the others are free.
    rules = [None, allow_only([[]], STOP), None, allow_only([[7]], STOP)]
    written = write_targets(network, TEXTS, WRITING, max_new_tokens=12, allowed=rules)
    free = write_targets(network, TEXTS, WRITING, max_new_tokens=12)
    assert written == [free[0], [], free[2], [7]]


def test_only_lets_nothing_be_written_but_the_answers(network: T5) -> None:
    answers = [[20], [20, 21], [22, 23, 24]]
    rule = allow_only(answers, STOP)
    assert [list(rule(begun)) for begun in ((), (20,), (20, 21), (22,))] == [[20, 22], [STOP, 21], [STOP], [23]]
    for written in write_targets(network, TEXTS, WRITING, max_new_tokens=9, allowed=[rule] * 4):
        assert written in answers


def test_the_seed_decides_and_a_sample_does_not_depend_on_how_many_there_are(network: T5) -> None:
    def write(seed: int, sample: int) -> list[int]:
        return list(stream_target(network, TEXTS[0], WRITING, Sampling(seed=seed), max_new_tokens=9, sample=sample))

    assert write(3, 0) == write(3, 0)
    assert len({tuple(write(seed, sample)) for seed in (3, 4) for sample in (0, 1)}) == 4


@pytest.mark.parametrize("seed", range(5))
def test_every_hole_is_filled_with_words(network: T5, seed: int) -> None:
    rule = SpanRule([39, 38, 37], [0, 1, 2], VOCABULARY, blanks=3, longest_span=4, stop=STOP)
    sampling = Sampling(seed=seed)
    written = list(stream_target(network, TEXTS[0], WRITING, sampling, max_new_tokens=99, allowed=rule))
    spans = rule.spans(written)
    assert [token for token in written if token > 36] == [39, 38, 37]
    assert [token for span in spans for token in span] == [token for token in written if token <= 36]
    assert all(1 <= len(span) <= 4 for span in spans)
    assert min(min(span) for span in spans) > 2


def test_the_last_span_ends_with_the_sentinel_that_would_come_next() -> None:
    rule = SpanRule([39, 38, 37], [0, 1, 2], VOCABULARY, blanks=2, longest_span=4, stop=STOP)
    words = list(range(3, 37))
    assert rule((39,)) == words
    assert rule((39, 5)) == [*words, 38]
    assert rule((39, 5, 38)) == words
    assert rule((39, 5, 38, 6)) == [*words, STOP, 37]
    assert list(rule((39, 5, 38, 6, 37))) == [STOP]
    assert rule.spans([39, 5, 38, 6, 37]) == [[5], [6]]


def test_a_network_that_was_taught_many_holes_does_not_run_to_the_limit(network: T5) -> None:
    """Whatever it has read, this one writes 39, a word, 38, a word, 37, as training with three blanks teaches."""
    follows = {0: 39, 39: 5, 38: 6, 37: 7, 5: 38, 6: 37, 7: STOP}

    class Taught:
        embedding = network.embedding

        def encode(self, tokens: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*tokens.shape, 1)

        def decode(self, tokens: torch.Tensor, *_: object, cache: object) -> torch.Tensor:
            return tokens[..., None]

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.tensor(follows[int(hidden)]), VOCABULARY).float()

    rule = SpanRule([39, 38, 37], [0, 1, 2], VOCABULARY, blanks=1, longest_span=50, stop=STOP)
    taught: Any = Taught()
    written = list(stream_target(taught, TEXTS[0], WRITING, GREEDY, max_new_tokens=99, allowed=rule))
    assert rule.spans(written) == [[5]]


def test_too_many_holes_and_nothing_to_read_are_refused(network: T5) -> None:
    with pytest.raises(InputError, match="3 blanks needs as many sentinels, and the vocabulary has 2"):
        SpanRule([39, 38], [0], VOCABULARY, blanks=3, longest_span=4, stop=STOP)
    with pytest.raises(InputError, match="input is empty"):
        stream_target(network, [], WRITING, GREEDY, max_new_tokens=1)


def test_the_cache_saves_time() -> None:
    network = make(layers=3, width=64)
    text, count = [5] * 200 + [1], 60
    started = time.process_time()
    # The end of text is not among what may be written, so that both write as much.
    list(stream_target(network, text, WRITING, GREEDY, max_new_tokens=count, allowed=lambda _: range(2, VOCABULARY)))
    cached = time.process_time() - started
    started = time.process_time()
    with torch.inference_mode():
        for length in range(1, count + 1):
            whole_logits(network, [text], torch.full((1, length), 5))
    assert cached < time.process_time() - started
