"""The model card of the made run, read back by Hugging Face's own reader."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.reports.model_card import find_model_run, model_card
from flows.reports.model_card_facts import card_facts, run_that_trained
from model.checksummed_json import write_sealed
from model.errors import RecipeError
from tasks.artifacts.artifact import Artifact
from tasks.clean.presets import PERSONAL

hub = pytest.importorskip("huggingface_hub")
RECIPE = {
    "sample": {
        "sources": [{"name": "books", "licence": "CC0-1.0", "language": "en"}, {"name": "web", "licence": None}]
    },
    "train": {"model": {"architecture": "gpt", "context": 16, "layers": 2}},
}


@pytest.fixture
def reported(made_run: Any) -> str:
    write_sealed(made_run.folder / "recipe.json", RECIPE)
    return model_card(made_run.record, made_run.root)


def test_the_head_is_what_the_hub_reads(reported: str) -> None:
    card = hub.ModelCard(reported)
    data = card.data.to_dict()
    assert (data["license"], data["language"]) == ("unknown", ["en"])
    assert "datasets" not in data, "files of this machine are no data sets of the hub"
    assert (data["pipeline_tag"], data["tags"]) == ("text-generation", ["bessemer", "gpt"])
    assert data["metrics"] == ["bits_per_byte", "accuracy"]
    results = {(one.dataset_name, one.metric_name): one.metric_value for one in card.data.eval_results}
    assert results["held-out text, mean of the sources", "bits per byte"] == 2.25
    assert results["cloze", "one-shot, leaked items (1)"] == 0.5
    assert len(results) == 3 + 9
    assert "&id" not in reported


def test_the_card_has_data_leaks_scores_energy_and_limits(reported: str) -> None:
    for sentence in (
        "trained on 640 tokens, made by Bessemer in the run `20270115T080000Z-abcdef`",
        "| books | CC0-1.0 | 12 | 9 | 480 | 50.0% | 50.0% | 50.0% | 0.67 |",
        "| web | not stated | 20 | 8 | 160 | 50.0% | 50.0% | 50.0% | 2.00 |",
        "32 documents read = 1 rejected + 1 not selected",
        "| clean: gopher_words_min | 4 |",
        "49 of 50 at a similarity of 0.8 and above were found (recall 0.980, 95% interval 0.900 to 0.990)",
        "| cloze | 2 | 1 | 0 | 1 | 0 |",
        "the loss went from 6.000 to 3.300 nats a token. The divergence guard skipped 1 steps.",
        "| all (mean) | 2.250 | 2.750 | 4.250 | 3.250 |",
        "| cloze, zero-shot | acc | 50.0 ± 19.6 (2) | 50.0 ± 19.6 (1) | 50.0 ± 19.6 (1) |",
        "an estimate, not a measurement, from 2 cores of 12 W, 8 GB of memory",
        "The context is 16 tokens.",
        "No licence is declared for this model, so none is granted.",
        "No licence is stated for web.",
        "with uncommitted changes",
    ):
        # Short cells keep their words on one line.
        assert sentence in reported.replace("\N{NO-BREAK SPACE}", " ")


def test_the_network_is_the_trained_one_and_not_what_the_recipe_says_of_it(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vocabulary of the recipe is a placeholder, and a base model brings all of its network."""
    made = make(tmp_path)
    write_sealed(made.folder / "recipe.json", {"train": {"model": {"vocab_size": 4096, "context": 16}}})
    described = tmp_path / "model.json"
    described.write_text('{"config": {"vocab_size": 512, "context": 2048}}')
    file = Artifact.file
    monkeypatch.setattr(Artifact, "file", lambda self, name: described if name == "model.json" else file(self, name))
    card = model_card(made.record, made.root)
    assert "| vocab_size | 512 |" in card.replace("\N{NO-BREAK SPACE}", " ")
    assert "The context is 2,048 tokens." in card


def test_data_sets_of_the_hub_are_listed_by_their_ids(made_run: Any) -> None:
    paths = {"books": ["hf://datasets/wikimedia/wikipedia@main/20231101.en/*.parquet", "more.txt"], "web": ["w/*.txt"]}
    sources = [{"name": name, "licence": None, "paths": some} for name, some in paths.items()]
    write_sealed(made_run.folder / "recipe.json", {**RECIPE, "sample": {"sources": sources}})
    data = hub.ModelCard(model_card(made_run.record, made_run.root)).data.to_dict()
    assert data["datasets"] == ["wikimedia/wikipedia"]


def test_languages_are_those_that_were_found(make: Callable[..., Any], tmp_path: Path) -> None:
    """Of 200 documents one is below 1%; the recipe says English."""
    made = make(tmp_path, facts={"clean": {"languages": {"de": 197, "fr": 2, "nl": 1, "unknown-": 0}}})
    write_sealed(made.folder / "recipe.json", RECIPE)
    assert hub.ModelCard(model_card(made.record, made.root)).data.to_dict()["language"] == ["de", "fr"]


def test_each_edit_of_personal_data_counts_as_such(made_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = card_facts(made_run.record, made_run.root)
    for edit in PERSONAL:
        edited = [{"stage": "clean", "rule": edit, "documents": 1, "by_source": {"web": 1}}]
        changed = replace(facts, findings={**facts.findings, "edited": edited})  # pyright: ignore[reportArgumentType]
        monkeypatch.setattr("flows.reports.model_card.card_facts", lambda *_, found=changed: found)
        reported = model_card(made_run.record, made_run.root)
        assert f"replaced where patterns matched ({edit.replace('_', ' ')})" in reported
        assert "No personal data" not in reported


def test_the_card_has_samples_and_how_to_use_the_model(reported: str) -> None:
    assert "<pre><b>Once upon</b> a time &lt;b&gt;bold&lt;/b&gt;</pre>" in reported


def test_the_library_is_named_where_one_loads_the_files(made_run: Any) -> None:
    write_sealed(made_run.folder / "recipe.json", RECIPE)
    assert "library_name" not in model_card(made_run.record, made_run.root)
    beside = model_card(made_run.record, made_run.root, class_name="GPT2LMHeadModel")
    assert hub.ModelCard(beside).data.library_name == "transformers"
    assert "prompt = tokenizer('Once upon', return_tensors=\"pt\").input_ids" in beside
    assert "model.generate(prompt, max_new_tokens=50, do_sample=True)" in beside


def test_identities_are_shown_as_they_are_copied(reported: str) -> None:
    provenance = reported.partition("## Provenance")[2]
    assert "| train |" in provenance
    assert "\\" not in provenance


def test_names_in_the_card_are_never_html(make: Callable[..., Any], tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    benchmark = {"items": 2, "leaked": 1, "clean": 1, "unmatchable": 0, "remains": 1}
    made = make(tmp_path, facts={"decontaminate": {"benchmarks": {hostile: benchmark}}})
    reported = model_card(made.record, made.root)
    assert "<script>" not in reported
    assert "&lt;script&gt;" in reported
    assert "The training text still holds 1 benchmark item;" in reported


def test_names_and_samples_in_the_card_are_never_markdown(made_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a recipe, names of files in remarks, and beginnings of documents are somebody else's."""
    hostile = "![a](http://evil.example/p.png)"
    facts = card_facts(made_run.record, made_run.root)
    changed = replace(
        facts,
        record={**facts.record, "recipe_name": f"mine\n<img src=x> {hostile}"},
        findings={**facts.findings, "remarks": [f"{hostile}.txt could not be read"]},  # pyright: ignore[reportArgumentType]
        model={**facts.model, "parameters": 1},
        samples=[{**facts.samples[0], "prompt": f"Once\r{hostile}", "text": "\x1b]0;"}],
    )
    monkeypatch.setattr("flows.reports.model_card.card_facts", lambda *_: changed)
    reported = hub.ModelCard(model_card(made_run.record, made_run.root)).text
    before, _, after = reported.partition("<pre>")
    sample, _, after = after.partition("</pre>")
    assert "\\u001b" in sample
    assert "--prompt Once\n" in before
    for shown in (before, after):
        assert "![a](" not in shown
        assert r"!\[a\](http\://evil.example/p.png)" in shown
    assert "# mine &lt;img src=x&gt; " in before


def test_a_declared_licence_is_on_the_card_or_stops_it(made_run: Any) -> None:
    write_sealed(made_run.folder / "recipe.json", RECIPE)
    with pytest.raises(RecipeError, match="web \\(no licence stated\\)"):
        model_card(made_run.record, made_run.root, "MIT")
    whole = {
        "sample": {"sources": [{"name": "books", "licence": "CC0-1.0"}, {"name": "web", "licence": "CC-BY-SA-3.0"}]}
    }
    write_sealed(made_run.folder / "recipe.json", whole)
    reported = model_card(made_run.record, made_run.root, "CC-BY-SA-4.0", "GPT2LMHeadModel")
    assert reported.startswith("---\nlicense: cc-by-sa-4.0\n")
    assert "This model is licensed under CC-BY-SA-4.0" in reported
    assert 'GPT2LMHeadModel.from_pretrained(".")' in reported
    other = model_card(made_run.record, made_run.root, "CC-BY-SA-3.0 OR CC-BY-SA-4.0")
    assert other.startswith("---\nlicense: other\nlicense_name: CC-BY-SA-3.0 OR CC-BY-SA-4.0\n")


def test_what_base_models_learnt_from_counts_for_the_licence(make: Callable[..., Any], tmp_path: Path) -> None:
    """A chain of nightly runs: each went on from the model of the one before."""
    made = make(tmp_path)
    nights = {"20270101T000000Z-aaaaaa": "CC-BY-SA-4.0", "20270102T000000Z-bbbbbb": "MIT"}
    before: dict[str, Any] = {}
    for run_id, licence in nights.items():
        sources = {"sample": {"sources": [{"name": "books", "licence": licence}]}, "train": before}
        path = str(made.root / "artifacts" / "train" / run_id)
        stages = [{"stage": "train", "identity": run_id, "path": path}]
        write_sealed(made.root / "runs" / run_id / "recipe.json", sources)
        write_sealed(
            made.root / "runs" / run_id / "run.json", {**made.record, "run_id": run_id, "stages": stages, "notes": []}
        )
        before = {"base_model": path}
    both = {"sources": [{"name": "books", "licence": "MIT"}, {"name": "web", "licence": "MIT"}]}
    write_sealed(made.folder / "recipe.json", {"sample": both, "train": {**RECIPE["train"], **before}})
    with pytest.raises(RecipeError, match=r"books \(run 20270101T000000Z-aaaaaa\) \(CC-BY-SA-4\.0\): derived works"):
        model_card(made.record, made.root, "MIT")
    reported = model_card(made.record, made.root, "CC-BY-SA-4.0")
    assert "had learnt from: books (run 20270101T000000Z-aaaaaa), CC-BY-SA-4.0." in reported.replace("&#45;", "-")
    write_sealed(made.folder / "recipe.json", {"sample": both, "train": {"base_model": "/published/model"}})
    assert "had learnt from" not in model_card(made.record, made.root, "MIT")


@pytest.mark.parametrize("until", ["sample", "clean", "chunk"])
def test_a_run_that_ended_early_has_a_card_of_what_it_did(until: str, make: Callable[..., Any], tmp_path: Path) -> None:
    made = make(tmp_path, until=until)
    reported = model_card(made.record, made.root)
    assert "## Data" in reported
    assert "## Scores" not in reported


def test_the_command_prints_or_writes_the_card(made_run: Any, tmp_path: Path) -> None:
    root = ["--root", str(made_run.root)]
    printed = CliRunner().invoke(app, ["model", "card", *root])
    assert printed.exit_code == 0
    assert printed.stdout.startswith("---\nlicense: unknown\n")
    file = tmp_path / "card.md"
    written = CliRunner().invoke(app, ["model", "card", "20270115", "-o", str(file), *root])
    assert written.exit_code == 0
    assert file.read_text() == printed.stdout
    refused = CliRunner().invoke(app, ["model", "card", "--licence", "MIT", *root])
    assert refused.exit_code == 2


def test_the_command_refuses_a_run_without_a_model(make: Callable[..., Any], tmp_path: Path) -> None:
    made = make(tmp_path, until="chunk")
    refused = CliRunner().invoke(app, ["model", "card", made.record["run_id"], "--root", str(made.root)])
    assert refused.exit_code == 3
    assert "no artifact of the stage `train`" in " ".join(refused.output.split())


def test_the_run_of_a_model_is_found_by_its_artifact(made_run: Any, tmp_path: Path) -> None:
    (train,) = [Path(entry["path"]) for entry in made_run.record["stages"] if entry["stage"] == "train"]
    assert run_that_trained(made_run.root, train) == made_run.record
    assert find_model_run(made_run.root, str(train), train) == made_run.record
    assert find_model_run(made_run.root, "latest", train) == made_run.record
    assert find_model_run(made_run.root, str(tmp_path), tmp_path) is None
