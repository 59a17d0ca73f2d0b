"""Aggregates that are kept: what more documents change with them and without them."""

import json
import random
from pathlib import Path

import pytest

from model.errors import InputError, RecipeError
from tasks.artifacts.build import RunContext
from tasks.artifacts.references import kept_artifact
from tasks.clean.config import CleanConfig, QualityConfig
from tasks.clean.stage import build_clean
from tasks.decontaminate.config import Benchmark, DecontaminateConfig
from tasks.decontaminate.stage import build_decontaminate
from tasks.sample.config import SampleConfig, Source
from tasks.sample.stage import build_sample
from tasks.vocab.config import VocabConfig
from tasks.vocab.stage import build_vocab


def prose(seed, words=120):
    generator = random.Random(seed)
    return " ".join(f"{generator.choice('bcdfg')}{generator.randrange(9000)}" for _ in range(words))


PLAIN = ["the river runs under the old bridge", "she reads the paper in the morning", "winter came early that year"]


@pytest.fixture
def sampled(context, tmp_path):
    """Samples half of 40 files and later of 80, with sizes kept or measured."""

    def sample(files, keep=None):
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir(exist_ok=True)
            for number in range(files):
                (tmp_path / folder / f"{number:03}.txt").write_text(prose(f"{folder}{number}"))
        sources = tuple(Source(name=name, paths=(str(tmp_path / name),), weight=0.5) for name in ("a", "b"))
        config = SampleConfig(sources=sources, budget_tokens=4000, slack=1.0, keep=keep)
        return build_sample(context, config)

    return sample


def selected(artifact):
    return set(artifact.table("documents").column("doc_id").to_pylist())


def test_with_kept_sizes_new_files_move_no_old_document(sampled):
    first = sampled(40)
    measured, kept = sampled(80), sampled(80, keep=str(first.path))
    assert not selected(first) <= selected(measured)  # the rate has halved
    assert selected(first) < selected(kept)


def test_equal_sizes_kept_from_any_run_are_one_identity(sampled):
    first = sampled(40)
    kept = sampled(80, keep=str(first.path))
    again = sampled(80, keep=str(kept.path))
    assert again.reused
    assert again.identity == kept.identity


@pytest.fixture
def quiz(tmp_path):
    """A benchmark of one item, which opens with words that are common in some runs."""
    item = prose("item", 30)
    path = tmp_path / "quiz.jsonl"
    path.write_text(json.dumps({"id": "q", "question": item, "answer": "x", "match_text": item}) + "\n")
    return item, Benchmark(name="quiz", path=path)


def test_with_kept_counts_a_leak_stays_one_when_it_becomes_common(context, make_documents, quiz):
    item, benchmark = quiz
    config = DecontaminateConfig(heldout_share=0.0, benchmarks=(benchmark,), common_documents=5, planted_per_form=0)
    part = " ".join(item.split()[:18])  # a part needs rare words, a whole item does not
    few = [("web", f"{prose(1)} {part} {prose(2)}"), ("web", prose(3))]
    many = [*few, *(("web", f"{prose(10 + number)} {part} {prose(30 + number)}") for number in range(9))]
    first = build_decontaminate(context, make_documents([few]), config)
    assert first.report.facts["leaked_documents"] == 1
    measured = build_decontaminate(context, make_documents([many]), config)
    assert measured.report.facts["leaked_documents"] == 0  # in ten of eleven documents: common words
    kept = config.model_copy(update={"keep": str(first.path)})
    assert build_decontaminate(context, make_documents([many]), kept).report.facts["leaked_documents"] == 10


def test_words_that_are_new_since_the_counts_were_kept_are_evidence(context, make_documents, quiz):
    item, benchmark = quiz
    config = DecontaminateConfig(heldout_share=0.0, benchmarks=(benchmark,), planted_per_form=0)
    first = build_decontaminate(context, make_documents([[("web", prose(1))]]), config)
    kept = config.model_copy(update={"keep": str(first.path)})
    leaky = make_documents([[("web", f"{prose(1)} {item} {prose(2)}")]])
    assert build_decontaminate(context, leaky, kept).report.facts["leaked_documents"] == 1


def test_a_kept_classifier_is_used_and_passed_on(context, make_documents):
    texts = [("good", prose(f"g{number}", 60)) for number in range(60)]
    texts += [("web", "buy now " * 40 + str(number)) for number in range(60)]
    config = CleanConfig(preset="minimal", quality=QualityConfig(good=("good",)))
    first = build_clean(context, make_documents([texts]), config)
    kept = config.model_copy(update={"keep": str(first.path)})
    # Two documents: too few to train on.
    two = make_documents([[("web", "buy now " * 40), ("good", prose("g0", 60))]])
    with pytest.raises(InputError, match="needs 50"):
        build_clean(context, two, config)
    second = build_clean(context, two, kept)
    assert second.table("quality").equals(first.table("quality"))
    assert second.report.facts["quality"] == first.report.facts["quality"]


def test_a_kept_vocabulary_is_the_artifact_itself(context, make_documents):
    config = VocabConfig(vocab_size=300)
    texts = [("web", f"{plain} {number}") for number, plain in enumerate(PLAIN * 5)]
    first = build_vocab(context, make_documents([texts]), config)
    other = make_documents([[("web", "entirely different words " * 200)]])
    kept = build_vocab(context, other, config.model_copy(update={"keep": str(first.path)}))
    assert (kept.identity, kept.content, kept.reused) == (first.identity, first.content, True)
    with pytest.raises(RecipeError, match=r"vocab\.vocab_size is 400, and the kept vocabulary .* with 300"):
        build_vocab(context, other, config.model_copy(update={"keep": str(first.path), "vocab_size": 400}))


def record(root: Path, run, name, started, path):
    folder = root / "runs" / run
    folder.mkdir(parents=True)
    from model.checksummed_json import write_sealed

    stages = [{"stage": "sample", "path": str(path)}] if path else []
    write_sealed(folder / "run.json", {"run_id": run, "recipe_name": name, "started": started, "stages": stages})


def test_latest_is_the_last_run_of_the_recipe_that_has_the_stage(sampled, context: RunContext):
    root = context.root
    assert kept_artifact("latest:mine", root, "sample") is None
    first, second = sampled(20), sampled(40)
    record(root, "r1", "mine", 1.0, first.path)
    record(root, "r2", "other", 2.0, second.path)
    record(root, "r3", "mine", 3.0, None)  # ended before sample
    kept = kept_artifact("latest:mine", root, "sample")
    assert kept is not None
    assert kept.identity == first.identity
    with pytest.raises(RecipeError, match="keep names `r9`: no run of that id"):
        kept_artifact("r9", root, "sample")
