"""The classifier learns, is judged on unseen sources, stays in the artifact, and drops by GPT-3's rule."""

import numpy as np
import pytest
import torch

from model.errors import InputError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext
from tasks.clean.config import CleanConfig, QualityConfig
from tasks.clean.filters.quality import Examples, QualityModel, auc, middle, pareto_draw
from tasks.clean.filters.quality_features import DIMENSIONS, train_weights
from tasks.clean.stage import build_clean

WORDS = "river bridge winter letter garden soldier window evening mother journey silver market captain".split()  # noqa: SIM905


def prose(number):
    draw = np.random.default_rng(number)
    sentences = [" ".join(draw.choice(WORDS, 9)).capitalize() + "." for _ in range(6)]
    return " ".join(sentences)


def chat(number):
    draw = np.random.default_rng(number)
    return " ".join(f"{word}!!! lol @user{number} #{word} http://t.co/{number}" for word in draw.choice(WORDS, 5))


def raw(text):
    return np.frombuffer(text.encode(), np.uint8)


@pytest.fixture
def parent(make_documents):
    sources = {"novels": prose, "essays": prose, "tweets": chat, "comments": chat}
    rows = [
        (source, make(number + 1000 * place))
        for place, (source, make) in enumerate(sources.items())
        for number in range(60)
    ]
    return make_documents([rows[:120], rows[120:]])


CONFIG = CleanConfig(
    preset="minimal",
    quality=QualityConfig(good=("novels", "essays"), documents=100),
    wipe_out_limit=1.0,
)


def test_the_stage_learns_reports_unseen_sources_and_keeps_the_classifier(context, parent):
    artifact = build_clean(context, parent, CONFIG)
    facts = artifact.report.facts["quality"]
    assert facts["good_documents"] == facts["other_documents"] == 100
    assert facts["unseen_auc"] > 0.99
    assert {(fold["good"], fold["other"], fold["whole"]) for fold in facts["unseen"]} == {
        ("essays", "comments", True),
        ("novels", "tweets", True),
    }
    assert artifact.table("quality").column("feature")[0].as_py() == -1
    counts = artifact.report.sources
    assert counts["novels"].documents_out == counts["essays"].documents_out == 60
    assert counts["tweets"].dropped["quality"] > 30
    rows = [row for row in artifact.table("ledger").to_pylist() if row["rule"] == "quality"]
    assert all(row["value"] <= row["limit"] for row in rows)


def test_the_same_bytes_come_out_for_two_workers_and_again(context, parent):
    one = build_clean(context, parent, CONFIG)
    forced = RunContext(context.root, "again", forced=frozenset({"clean"}))
    two = build_clean(forced, parent, CONFIG.model_copy(update={"workers": 2}))
    assert isinstance(two, Artifact)
    assert two.content == one.content


def test_too_few_documents_are_an_error(context, make_documents):
    few = make_documents([[("novels", prose(number)) for number in range(60)] + [("tweets", "hi")]])
    with pytest.raises(InputError, match="found 1 documents of the other sources"):
        build_clean(context, few, CONFIG)


def test_the_middle_of_a_text_has_the_features_of_the_whole():
    for length in (10, 300, 301, 700, 701, 1500):
        text = raw(" ".join(f"wörd{number}, 我" for number in range(length)))
        whole, part = Examples.of([text]), Examples.of([middle(text)])
        assert whole.features.tolist() == part.features.tolist()
        assert whole.values.tolist() == pytest.approx(part.values.tolist())


def test_a_word_has_five_features_and_a_line_end_one():
    """The word, its pair with the one before, and its shape alone, with one and with two before."""
    assert [Examples.of([raw(text)]).features.size for text in ("river", "river\n", "river 7")] == [5, 6, 10]
    full = Examples.of([raw("river")]).with_full_words().values
    assert full.tolist() == pytest.approx([5**-0.5] * 5), "each occurs once, and the row has length 1"


def test_weights_come_near_the_optimum_that_torch_finds():
    generator = np.random.default_rng(1)
    examples, dimensions = 400, 12
    dense = generator.random((examples, dimensions), np.float32) - 0.5
    good = (dense @ generator.normal(size=dimensions) + generator.normal(size=examples) * 0.3 > 0).astype(np.float64)
    bounds = np.arange(examples + 1, dtype=np.int64) * dimensions
    features = np.tile(np.arange(dimensions, dtype=np.int32), examples)
    order = np.concatenate([generator.permutation(examples) for _ in range(200)])
    weights, bias = train_weights(bounds, features, dense.ravel(), good, np.ones(examples), order, dimensions)

    def loss(weights, bias):
        return torch.nn.functional.binary_cross_entropy_with_logits(x @ weights + bias, y).item()

    x, y = torch.tensor(dense, dtype=torch.float64), torch.tensor(good)
    best = torch.zeros(dimensions + 1, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([best], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        solver.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(x @ best[1:] + best[0], y)
        value.backward()
        return value

    solver.step(closure)
    optimum = loss(best[1:].detach(), best[0].item())
    assert loss(torch.tensor(weights), bias) < optimum + 0.02
    assert optimum < loss(torch.zeros(dimensions, dtype=torch.float64), 0.0) / 2


def test_auc_of_known_scores():
    assert auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True])) == 0.75
    assert auc(np.array([1.0, 1.0]), np.array([True, False])) == 0.5
    assert np.isnan(auc(np.array([1.0]), np.array([True])))


def test_the_draw_is_that_of_numpy():
    draws = np.array([pareto_draw(uniform, 9) for uniform in (np.arange(10_000) + 0.5) / 10_000])
    reference = np.random.default_rng(0).pareto(9, 200_000)
    assert np.quantile(draws, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(reference, [0.1, 0.5, 0.9]), rel=0.03)


def test_good_sources_are_kept_whole_and_a_verdict_depends_on_the_document_alone():
    model = QualityModel(np.zeros(DIMENSIONS, np.float32), -20.0, frozenset({"good"}), 9.0, draws=3)
    assert model.verdict(bytes(16), "good", raw("x")) is None
    first = model.verdict(bytes(16), "other", raw("x"))
    assert first is not None
    assert first == model.verdict(bytes(16), "other", raw("x"))
    score, limit = first
    assert score < limit
