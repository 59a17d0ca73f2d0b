"""Tonight's recipe: what of the whole one stays, and what the current model and the new files decide."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.nightly.history import Night
from flows.nightly.recipe import Base, forgotten_documents, read_raw
from flows.nightly.start import NightlyContext
from flows.runs.record import write_recipe
from model.checksummed_json import write_sealed
from model.errors import RecipeError
from tasks.common import confinement

MORE = """
[nightly]
max_hours = 3
[nightly.later]
budget_tokens = "20K"
"train.schedule.peak_lr" = 1e-3
[nightly.later.clean]
preset = "gopher"
"""


@pytest.fixture
def recipe(foundry: Path, tmp_path: Path) -> Path:
    path = tmp_path / "nights.toml"
    path.write_text((foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry)) + MORE)
    return path


def base(path: Path, root: Path) -> Base:
    first = read_raw(str(path), root).whole()
    earlier = first.model_copy(
        update={
            "dedup": first.dedup.model_copy(update={"against": ("night-1",)}),
            "evaluate": first.evaluate.model_copy(update={"earlier": ("night-1",)}),
        }
    )
    return Base("night-2", earlier, root / "model", root / "tokenizer.model")


def test_the_first_night_is_the_recipe_with_a_schedule_that_can_go_on(recipe: Path, tmp_path: Path) -> None:
    whole = read_raw(str(recipe), tmp_path).whole()
    assert whole.train.schedule.kind == "warmup_stable_decay"
    assert (whole.chunk.budget_tokens, whole.dedup.against, whole.evaluate.earlier) == (40_000, (), ())
    assert whole.decontaminate.heldout_share == 0.02
    assert all(source.only == () for source in whole.sample.sources)


def test_a_later_night_reads_what_is_new_and_goes_on_from_the_current_model(recipe: Path, tmp_path: Path) -> None:
    raw = read_raw(str(recipe), tmp_path, ["dedup.priorities.notes=1", "dedup.priorities.code=2"])
    night = raw.of_night({"notes": ["note-02.txt", "note-01.txt"]}, base(recipe, tmp_path))
    (source,) = night.sample.sources
    assert (source.name, source.only, source.weight) == ("notes", ("note-01.txt", "note-02.txt"), 0.5)
    assert night.sample.normalise_weights
    assert night.chunk.weights == {"notes": 0.5}
    assert night.dedup.priorities == {"notes": 1}
    assert night.dedup.against == ("night-1", "night-2")
    assert night.evaluate.earlier == ("night-1", "night-2")
    assert night.decontaminate.heldout_share == 0.0
    assert (night.vocab.base, night.train.base_model) == (tmp_path / "tokenizer.model", tmp_path / "model")
    assert night.chunk.budget_tokens == 20_000
    assert night.clean.preset == "gopher"
    assert (night.train.schedule.start_lr, night.train.schedule.peak_lr) == (2e-4, 1e-3)
    assert night.evaluate.seed == read_raw(str(recipe), tmp_path).whole().evaluate.seed


def test_tables_by_source_are_those_of_the_sources_with_new_files(recipe: Path, tmp_path: Path) -> None:
    """Else the recipe of a night without new files of one of them would be refused."""
    phases = (
        "{ share = 0.2, weights = { notes = 1, code = 3 } }, { share = 0.1, weights = { code = 1 }, end_lr = 0.0 },"
        " { share = 0.05, weights = { code = 1 } }"
    )
    settings = ['clean.kinds={ notes = "prose", code = "code" }', f"train.phases=[{phases}]"]
    raw = read_raw(str(recipe), tmp_path, settings)
    assert set(raw.whole().clean.kinds) == {"notes", "code"}
    night = raw.of_night({"notes": ["note-01.txt"]}, base(recipe, tmp_path))
    assert night.clean.kinds == {"notes": "prose"}
    assert [(phase.share, phase.weights, phase.end_lr) for phase in night.train.phases] == [
        (0.2, {"notes": 1}, None),
        (0.1, {}, 0.0),
    ]


def test_a_gate_holds_for_sources_without_new_files_too(recipe: Path, tmp_path: Path) -> None:
    """Their held-out text is that of the first night."""
    settings = [
        f'train.base_model="{tmp_path / "first"}"',
        f'evaluate.gate={{ sources = ["code"], base_model = "{tmp_path / "first"}" }}',
    ]
    night = read_raw(str(recipe), tmp_path, settings).of_night({"notes": ["note-01.txt"]}, base(recipe, tmp_path))
    assert night.evaluate.gate is not None
    assert (night.evaluate.gate.sources, night.evaluate.gate.base_model) == (("code",), tmp_path / "model")
    unknown = [settings[0], 'evaluate.gate={ sources = ["coda"] }']
    with pytest.raises(RecipeError, match=r"evaluate\.gate\.sources names the source `coda`"):
        read_raw(str(recipe), tmp_path, unknown).whole()


def test_a_later_night_of_a_confined_recipe_goes_on_from_the_current_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which lies outside of the folder that the recipe may read."""
    theirs, root = tmp_path / "theirs", tmp_path / "root"
    theirs.mkdir()
    (theirs / "notes.txt").write_text("a text\n")
    path = theirs / "nights.toml"
    path.write_text('name = "n"\nbudget_tokens = "1K"\n[[sources]]\nname = "s"\nweight = 1\npaths = ["{recipe}"]\n')
    monkeypatch.setattr(confinement, "_own", set())
    monkeypatch.setattr(confinement, "_folder", theirs.resolve())
    night = read_raw(str(path), root).of_night({"s": ["notes.txt"]}, base(path, root))
    assert (night.vocab.base, night.train.base_model) == (root / "tokenizer.model", root / "model")
    with pytest.raises(RecipeError, match="--untrusted"):
        read_raw(str(path), root, [f'nightly.later={{ "clean.deny.path" = "{root}" }}']).of_night(
            {"s": ["notes.txt"]}, base(path, root)
        )


def test_what_a_recipe_compares_with_by_itself_stays(recipe: Path, tmp_path: Path) -> None:
    raw = read_raw(str(recipe), tmp_path, ['dedup.against="elsewhere"', "dedup.wipe_out_limit=0.5"])
    night = raw.of_night({"notes": ["note-01.txt"]}, base(recipe, tmp_path))
    assert night.dedup.against == ("elsewhere", "night-1", "night-2")
    assert night.dedup.wipe_out_limit == 0.5


def test_a_document_that_had_to_leave_is_not_read_again_with_its_file(recipe: Path, tmp_path: Path) -> None:
    """As where the file grew, or a nightly run's files are asked for again: no earlier run has the text as a copy."""
    ids = [f"{number:032x}" for number in range(4)]
    raw = read_raw(str(recipe), tmp_path, [f'sample.exclude_documents=["{ids[0]}", "{ids[1]}"]'])
    whole = raw.whole()
    excluding = [
        whole.model_copy(update={"sample": whole.sample.model_copy(update={"exclude_documents": (one,)})})
        for one in ids[1:]
    ]
    for run_id, removal in zip(("after-1", "after-2"), excluding, strict=False):
        (tmp_path / "runs" / run_id).mkdir(parents=True)
        write_recipe(tmp_path / "runs" / run_id, removal)
        write_sealed(tmp_path / "forgotten" / f"{run_id}.json", {"after": run_id})
    forgotten = forgotten_documents(tmp_path, excluding[2])
    assert list(forgotten) == ids[1:]
    night = raw.of_night({"notes": ["note-01.txt"]}, replace(base(recipe, tmp_path), forgotten=forgotten))
    assert list(night.sample.exclude_documents) == ids


def test_a_schedule_that_ends_for_good_is_remarked(recipe: Path, tmp_path: Path) -> None:
    assert read_raw(str(recipe), tmp_path).warnings() == []
    (reported,) = read_raw(str(recipe), tmp_path, ["train.schedule.kind=cosine"]).warnings()
    assert reported.startswith("train.schedule.kind is cosine")


def test_a_recipe_that_goes_on_from_the_model_of_another_is_remarked(recipe: Path, tmp_path: Path) -> None:
    raw = read_raw(str(recipe), tmp_path)
    tonight = NightlyContext(raw, raw.whole(), base(recipe, tmp_path), Night("run", raw.name))
    assert tonight.warnings() == []
    other = read_raw(str(recipe), tmp_path, ["name=other", "train.schedule.kind=cosine"])
    _, reported = NightlyContext(other, other.whole(), base(recipe, tmp_path), Night("run", "other")).warnings()
    assert f"the current model is of recipe `{raw.name}`, and this nightly run of `other` goes on from it" in reported


@pytest.mark.parametrize(
    ("setting", "reported"),
    [
        ("nightly.max_hours=-1", "nightly.max_hours: Input should be greater than 0"),
        ("nightly.hours=1", "nightly.hours: Extra inputs are not permitted"),
        ("nightly.later={ vocab = { vocab_size = 900 } }", "vocab cannot differ between nightly runs"),
        ("notify.webhook=gopher://x", "is no http:// or https:// address"),
        ("notify.mail_to=['nobody']", "'nobody' is no address of mail"),
        ("notify.mail_server=localhost", "is no HOST:PORT"),
        ("notify=3", "a table of settings belongs there"),
    ],
)
def test_wrong_tables_are_reported_at_once(recipe: Path, tmp_path: Path, setting: str, reported: str) -> None:
    with pytest.raises(RecipeError, match=reported.replace("(", "\\(")):
        read_raw(str(recipe), tmp_path, [setting])


def test_settings_apply_as_in_a_run(recipe: Path, tmp_path: Path) -> None:
    twin = read_raw("gpt3", tmp_path, ["train.model.layers=3", "scale=tiny"]).whole()
    assert twin.train.model.layers == 3
    assert twin.sample.sources[0].paths[0].startswith(str(tmp_path / "inputs" / "scales" / "gpt3"))
    assert read_raw(str(recipe), tmp_path, ["train.batch_rows=12"]).whole().train.micro_batch_rows == 6


def test_a_classifier_that_has_nothing_to_learn_from_tonight_is_refused(recipe: Path, tmp_path: Path) -> None:
    raw = read_raw(str(recipe), tmp_path, ["clean.quality.good=['code']"])
    with pytest.raises(RecipeError, match="learns what is good from code, none of which has new files"):
        raw.of_night({"notes": ["note-01.txt"]}, base(recipe, tmp_path))


def test_a_secret_address_of_the_environment_is_not_reported(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESSEMER_WEBHOOK", "secret-words-and-no-address")
    with pytest.raises(RecipeError) as caught:
        read_raw(str(recipe), tmp_path)
    assert "what BESSEMER_WEBHOOK holds" in str(caught.value)
    assert "secret-words" not in str(caught.value)
