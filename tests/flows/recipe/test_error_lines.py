"""Every error of a recipe names the file and the line, or the `--set`, that it is about, and what was meant."""

from pathlib import Path

import pytest

from flows.recipe.load import load_recipe
from model.errors import RecipeError

RECIPE = """\
format = 1
name = "mine"
budget_tokens = "2M"

[[sources]]
name = "books"
paths = ["{recipe}/books"]
weight = 0.75

[[sources]]
name = "posts"
paths = ["{recipe}/posts"]
format = "jsonl"
weight = 0.25

[[benchmarks]]
task = "hellaswag"
path = "{recipe}/hellaswag.jsonl"

[dedup]
threshold = 0.8

[vocab]
vocab_size = 512

[train.model]
context = 128
layers = 2

[train]
batch_rows = 16
schedule.peak_lr = 1e-3
# leave `task` out for a benchmark of your own
"""


def line(text: str) -> str:
    """`line N`, of the line of the recipe that begins so."""
    (number,) = (number for number, one in enumerate(RECIPE.splitlines(), 1) if one.startswith(text))
    return f"line {number}"


def after(text: str) -> str:
    """The line below."""
    return f"line {int(line(text).removeprefix('line ')) + 1}"


def error_of(text: str, tmp_path: Path, *settings: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, tmp_path, settings)
    assert str(path) in str(caught.value)
    return str(caught.value).replace(str(path), "mine.toml")


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ('name = "mine"', 'name = "mine', "line 2", "not valid TOML"),
        ("format = 1", "format = 9", "line 1", "another version"),
        ('budget_tokens = "2M"', 'budget_tokens = "2 lots"', "line 3", "positive count"),
        ("threshold = 0.8", "treshold = 0.8", line("threshold"), "unknown key; did you mean `threshold`?"),
        ("threshold = 0.8", 'threshold = "high"', line("threshold"), "(found 'high')"),
        ("threshold = 0.8", "threshold = 3", line("threshold"), "dedup.threshold"),
        ("[dedup]", "[dedupe]", line("[dedup]"), "unknown key; did you mean `dedup`?"),
        ('budget_tokens = "2M"', 'budget_token = "2M"', "line 3", "unknown key; did you mean `budget_tokens`?"),
        ("format = 1", "format = 1\nmax_epoch = 3", "line 2", "unknown key; did you mean `max_epochs`?"),
        ("format = 1", "format = 1\nbenchmark = 3", "line 2", "unknown key; did you mean `benchmarks`?"),
        ("format = 1", "format = 1\nweight_from = 'w.json'", "line 2", "unknown key; did you mean `weights_from`?"),
        ("format = 1", "format = 1\nnotifies = {}", "line 2", "unknown key; did you mean `notify`?"),
        ("format = 1", "format = 1\nclean = 5", "line 2", "must be a table"),
        ("schedule.peak_lr = 1e-3", "learning_rate = 1e-3", line("schedule"), "did you mean `train.schedule.peak_lr`?"),
        ("schedule.peak_lr = 1e-3", 'precision = "fp16"', line("schedule"), "unknown key"),
        ("layers = 2", 'preset = "gpt2-smal"', line("layers"), "gpt2-small"),
        ("layers = 2", "layers = -2", line("layers"), "greater than"),
        ("weight = 0.75", "weight = 0.5", "line 5", "must sum to 1"),
        ('paths = ["{recipe}/books"]\n', "", "line 5", "sources[0].paths: missing"),
        ('paths = ["{recipe}/books"]', 'paths = ["{folder}/books"]', "line 7", "nothing defines"),
        ('format = "jsonl"', 'format = "json"', line('format = "jsonl"'), "did you mean `jsonl`?"),
        ('name = "posts"', 'name = "books"', "line 5", "more than once"),
        ('format = "jsonl"', 'language = "english"', line('format = "jsonl"'), "write an ISO 639 code such as en"),
        ('task = "hellaswag"', 'task = "helaswag"', line("task"), "Did you mean `hellaswag`?"),
        ("threshold = 0.8", 'threshold = 0.8\npriorities = { boks = 1 }', after("threshold"), "boks"),
        ("batch_rows = 16", "batch_rows = 16\ndevise = 'cpu'", after("batch_rows"), "did you mean `device`?"),
        ("[train]", "[chunk]\nrow_length = 5\n\n[train]", after("[train]"), "row_length = 5"),
        ("[train]", "[evaluate.gate]\nsources = ['books']\n\n[train]", line("[train]"), "train.base_model is not set"),
    ],
)  # fmt: skip
def test_an_error_in_the_file_names_its_line(old: str, new: str, place: str, message: str, tmp_path: Path) -> None:
    assert RECIPE.count(old) == 1
    error = error_of(RECIPE.replace(old, new), tmp_path)
    assert message in error
    assert place in error


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dedup.treshold=0.9", "did you mean `threshold`?"),
        ("train.mdel.width=3", "did you mean `model`?"),
        ("trian.model.width=3", "did you mean `train`?"),
        ("train.model.layers=many", "train.model.layers"),
        ("sources.books.weight=-1", "sources[0].weight"),
        ("budget_tokens=lots", "positive count"),
        ("sources.boks.weight=1", "there is no entry named `boks`"),
        ("dedup.threshold", "write it as key.path=value"),
        ("sources=3", "no sources"),
        ("benchmarks=3", "write each benchmark as a table"),
        ('benchmarks=[{task="helaswag", path="a.jsonl"}]', "no task `helaswag` ships"),
    ],
)
def test_an_error_in_a_setting_names_the_setting(setting: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, tmp_path, ["seed=3", setting])
    assert message in str(caught.value)
    assert f"--set {setting}" in str(caught.value)
    assert "--set seed=3" not in str(caught.value)


@pytest.mark.parametrize("setting", ["seed=x", "temperature=x", "max_epochs=-1"])
def test_a_wrong_value_that_stages_share_is_named_once(setting: str, tmp_path: Path) -> None:
    error = error_of(RECIPE, tmp_path, setting)
    assert f"--set {setting}: {setting.partition('=')[0]}: Input should be" in error
    assert error.count("Input should be") == 1


def test_each_of_several_errors_has_its_own_line(tmp_path: Path) -> None:
    text = RECIPE.replace("threshold = 0.8", "treshold = 0.8").replace("layers = 2", "layers = 0")
    error = error_of(text, tmp_path, "vocab.vocab_size=none")
    assert [one.strip().partition(": ")[0] for one in error.splitlines()[1:]] == [
        line("threshold"),
        "--set vocab.vocab_size=none",
        line("layers"),
    ]


BOTH = RECIPE.replace("batch_rows = 16", "batch_rows = 16\nmicro_batch_rows = 4")


@pytest.mark.parametrize(
    ("text", "settings", "rows"),
    [
        (RECIPE, [], 16),
        (RECIPE, ["train.batch_rows=2"], 2),
        (RECIPE, ["train.batch_rows=24"], 12),
        (RECIPE, ["train.batch_rows=24", "train.ranks=3"], 8),
        (RECIPE, ["train.batch_rows=64"], 16),
        (BOTH, ["train.batch_rows=2"], 2),
        (BOTH, ["train.batch_rows=6"], 3),
        (BOTH, ["train.batch_rows=64"], 4),
        (BOTH, ["train.batch_rows=8", "train.micro_batch_rows=8"], 8),
    ],
)
def test_the_micro_batch_follows_the_batch(text: str, settings: list[str], rows: int, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert load_recipe(path, tmp_path, settings).train.micro_batch_rows == rows


def test_batches_that_contradict_each_other_are_named_with_both_lines(tmp_path: Path) -> None:
    text = BOTH.replace("batch_rows = 16", "batch_rows = 18")
    error = error_of(text, tmp_path)
    assert f"{after('batch_rows')} and {line('batch_rows')}: train: micro_batch_rows 4 does not divide" in error
    error = error_of(BOTH, tmp_path, "train.micro_batch_rows=5")
    assert f"--set train.micro_batch_rows=5 and {line('batch_rows')}: train: micro_batch_rows 5" in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RECIPE.replace("format = 1", "format = 1\nvariables = 5"), "variables is 5"),
        (RECIPE.replace('task = "hellaswag"', 'task = "hellaswag"\nfields = 5'), "fields of `hellaswag` is 5"),
        (RECIPE + "[evaluate]\nbenchmarks = 5\n", "evaluate.benchmarks is 5"),
        (RECIPE + "[evaluate.benchmarks]\nhellaswag = 5\n", "evaluate.benchmarks.hellaswag is 5"),
        (RECIPE + "[decontaminate]\nbenchmarks = 5\n", "decontaminate.benchmarks is 5"),
        (RECIPE.replace('name = "books"', 'name = ["books"]'), "sources[0].name"),
        (RECIPE.replace('budget_tokens = "2M"', 'budget_tokens = "1e400"'), "positive count"),
        (RECIPE.replace('name = "books"', 'name = "all"'), "the mean of all sources"),
        (
            RECIPE + "[clean.word_lists]\nname = 'a'\n",
            "clean.word_lists: must be a list; write `[[clean.word_lists]]` for each of its tables\n",
        ),
        (
            RECIPE + "[train.phases]\nshare = 0.5\n",
            "train.phases: must be a list; write `[[train.phases]]` for each of its tables\n",
        ),
        (RECIPE + "[decontaminate.benchmarks]\nname = 'a'\n", "must be a list; write `[[decontaminate.benchmarks]]`"),
        (
            RECIPE + "[clean]\nlanguages = 'en'\n",
            "clean.languages: must be a list; write `languages = [...]` (found 'en')",
        ),
        (RECIPE + "[clean.languages]\nen = 1\n", "clean.languages: must be a list; write `languages = [...]`\n"),
    ],
)
def test_a_value_of_a_wrong_kind_is_an_error_of_the_recipe(text: str, message: str, tmp_path: Path) -> None:
    assert message in f"{error_of(text, tmp_path)}\n"


def test_a_recipe_of_another_format_says_what_to_do(tmp_path: Path) -> None:
    error = error_of(RECIPE.replace("format = 1", "format = 2"), tmp_path)
    assert "`format = 2` is of another version of Bessemer; this one reads format 1. Write `format = 1` if" in error


def test_a_misspelt_rule_is_suggested_before_all_are_named(tmp_path: Path) -> None:
    error = error_of(RECIPE + '[clean]\nadd = ["homoglyph"]\n', tmp_path)
    assert "clean: there is no edit or rule `homoglyph`; did you mean `homoglyphs`? There are alt_texts, " in error
    error = error_of(RECIPE + '[clean]\nwithout = ["zzz"]\n', tmp_path)
    assert "there is no edit or rule `zzz`; choose from alt_texts, " in error


@pytest.mark.parametrize(
    ("kind", "meant"), [("poem", "verse"), ("prosa", "prose"), ("Verse", "verse"), ("novel", None)]
)
def test_a_kind_is_suggested_only_where_it_is_meant(kind: str, meant: str | None, tmp_path: Path) -> None:
    error = error_of(RECIPE + f'[clean]\nkinds = {{ books = "{kind}" }}\n', tmp_path)
    assert "Input should be 'prose', 'documentation'," in error
    assert f"(found '{kind}')" + (f"; did you mean `{meant}`?" if meant else "") == error[error.index("(found") :]


def test_a_variable_may_have_digits_and_capitals_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE.replace("{recipe}/books", "{corpus-2A}/books") + '\n[variables]\ncorpus-2A = "/texts"\n')
    assert load_recipe(path, tmp_path).sample.sources[0].paths == ("/texts/books",)


def test_the_keys_that_a_recipe_may_have_above_all_tables_are_named(tmp_path: Path) -> None:
    error = error_of(RECIPE.replace("format = 1", "format = 1\nquux = 3"), tmp_path)
    known = error.partition("quux: unknown key; known keys: ")[2].split(", ")
    assert known == sorted(known)
    stages = {"sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate"}
    shorthands = {"sources", "benchmarks", "weights_from", "budget_tokens", "temperature", "max_epochs", "keep"}
    others = {"allow_many_epochs", "machines", "variables", "scales", "search", "mix", "nightly", "notify"}
    assert set(known) == {"format", "name", "seed"} | stages | shorthands | others
