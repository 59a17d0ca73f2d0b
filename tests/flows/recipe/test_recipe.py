"""A recipe is complete and right, or dies at once with the path of every wrong key."""

from pathlib import Path

import pytest

from flows.recipe.load import RECIPES, find_recipe, load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES, select_stages
from flows.runs.roots import open_root
from model.errors import BessemerError, RecipeError
from tasks.evaluate.stage import evaluate_stage
from tasks.vocab.config import VocabConfig

MINIMAL = """
name = "small"
seed = 7
budget_tokens = "40K"
[[sources]]
name = "books"
paths = ["{recipe}/books/*.txt"]
weight = 0.75
priority = 1
[[sources]]
name = "web"
paths = ["{root}/web"]
weight = 0.25
[train.model]
context = 64
"""


def load(tmp_path: Path, text: str = MINIMAL, *settings: str, limit: float = 1.0) -> Recipe:
    path = tmp_path / "small.toml"
    path.write_text(text)
    return load_recipe(path, tmp_path / "root", settings, limit)


def test_values_that_several_stages_need_are_written_once(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    assert recipe.sample.budget_tokens == recipe.chunk.budget_tokens == 40_000
    longer = load(tmp_path, MINIMAL, "chunk.budget_tokens=0.1M")
    assert (longer.sample.budget_tokens, longer.chunk.budget_tokens) == (40_000, 100_000)
    assert recipe.chunk.weights == {"books": 0.75, "web": 0.25}
    assert recipe.dedup.priorities == {"books": 1}
    assert recipe.chunk.row_length == 65
    assert {getattr(recipe, stage).seed for stage in STAGES if hasattr(getattr(recipe, stage), "seed")} == {7}


def test_paths_may_begin_at_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves `--root=~/root` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    recipe = load(tmp_path, MINIMAL, 'benchmarks=[{task="hellaswag", path="~/items.jsonl"}]')
    assert recipe.decontaminate.benchmarks[0].path == tmp_path / "items.jsonl"
    assert open_root("~/root") == tmp_path / "root"


def test_sources_that_may_leave_are_read_last(tmp_path: Path) -> None:
    assert load(tmp_path).chunk.read_last == ()
    assert load(tmp_path, MINIMAL, "sources.web.may_leave=true").chunk.read_last == ("web",)
    with pytest.raises(RecipeError, match=r"sources\[1\]\.may_leave is 'yes'; it is true or false"):
        load(tmp_path, MINIMAL, "sources.web.may_leave=yes")


def test_the_evaluation_computes_where_training_does_unless_the_recipe_says(tmp_path: Path) -> None:
    assert load(tmp_path).evaluate.device == "cpu"
    trained = load(tmp_path, MINIMAL, "train.device=cuda").evaluate
    assert trained.device == "cuda"
    assert {"gpu", "cuda"} <= set(evaluate_stage(trained).libraries)
    here = load(tmp_path, MINIMAL, "train.device=cuda", "evaluate.device=cpu").evaluate
    assert evaluate_stage(here).libraries == evaluate_stage(load(tmp_path).evaluate).libraries


def test_the_objective_decides_how_rows_follow_from_the_context(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL, "chunk.objective=masked_lm").chunk.row_length == 64
    chunk = load(tmp_path, MINIMAL, "chunk.objective=span_corruption", "train.model.context=512").chunk
    assert (chunk.input_length, chunk.row_length) == (512, 568)
    with pytest.raises(RecipeError, match="input_length = 64 requires rows of 70 tokens"):
        load(tmp_path, MINIMAL, "chunk.objective=span_corruption", "chunk.row_length=9")


@pytest.mark.parametrize(
    ("objective", "key", "needed"),
    [("causal_lm", "row_length", 65), ("masked_lm", "row_length", 64), ("span_corruption", "input_length", 64)],
)
def test_rows_that_the_network_could_not_read_are_refused_at_once(
    tmp_path: Path, objective: str, key: str, needed: int
) -> None:
    said = f"chunk.objective={objective}"
    given = getattr(load(tmp_path, MINIMAL, said, f"chunk.{key}={needed}").chunk, key)
    assert given == needed
    message = rf"chunk\.{key} = 48, .*context = 64 reads {needed}\. Leave chunk\.{key} out; train\.model\.context"
    with pytest.raises(RecipeError, match=message):
        load(tmp_path, MINIMAL, said, f"chunk.{key}=48")


def test_the_objective_decides_which_special_tokens_a_vocabulary_gets_unless_the_recipe_says(tmp_path: Path) -> None:
    def vocab(*settings: str) -> VocabConfig:
        return load(tmp_path, MINIMAL, *settings).vocab

    assert (vocab().special_tokens, vocab().sentinels) == ((), 0)
    assert vocab("chunk.objective=masked_lm").special_tokens == ("[CLS]", "[SEP]", "[MASK]")
    assert vocab("chunk.objective=masked_lm", "vocab.model_type=wordpiece").special_tokens == ()
    assert vocab("chunk.objective=span_corruption").sentinels == 100
    assert vocab("chunk.objective=span_corruption", "vocab.sentinels=200").sentinels == 200
    assert vocab("chunk.objective=span_corruption", "vocab.base=t5.model").sentinels == 0


@pytest.mark.parametrize(
    ("architecture", "objective"), [("gpt", "causal_lm"), ("bert", "masked_lm"), ("t5", "span_corruption")]
)
def test_network_and_objective_follow_from_each_other(tmp_path: Path, architecture: str, objective: str) -> None:
    for said in (f"train.model.architecture={architecture}", f"chunk.objective={objective}"):
        recipe = load(tmp_path, MINIMAL, said)
        assert (recipe.train.model.architecture, recipe.chunk.objective) == (architecture, objective)


def test_a_network_that_is_not_trained_on_the_objective_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"architecture is bert, which is trained on masked_lm.*on which a t5 is"):
        load(tmp_path, MINIMAL, "train.model.architecture=bert", "chunk.objective=span_corruption")
    with pytest.raises(RecipeError, match=r"train\.model: architecture is gpt, bert or t5"):
        load(tmp_path, MINIMAL, "train.model.architecture=rnn")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train=5", "train is 5, and must be a table of settings"),
        ("train.model=5", r"train\.model is 5, and must be a table"),
        ("train.model.context=abc", r"train\.model\.context: .*valid integer"),
        ('train.model.preset=["a"]', "there is no preset"),
        ("train.length_warmup.start_length=100", "train"),
    ],
)
def test_what_is_no_table_and_no_number_is_reported_as_such(tmp_path: Path, setting: str, words: str) -> None:
    more = ("train.length_warmup.share=0.1",) if "length_warmup" in setting else ()
    with pytest.raises(RecipeError, match=words):
        load(tmp_path, MINIMAL, setting, *more)


def test_the_gate_gets_the_base_model_and_is_refused_where_it_has_nothing_to_compare(tmp_path: Path) -> None:
    gate = 'evaluate.gate.sources=["books"]'
    reported = load(tmp_path, MINIMAL, gate, "train.base_model={recipe}/english", "vocab.base={recipe}/english.model")
    assert reported.evaluate.gate is not None
    assert (reported.evaluate.gate.base_model, reported.evaluate.gate.max_rise) == (tmp_path / "english", 0.02)
    with pytest.raises(RecipeError, match=r"train\.base_model is not set\. Name a trained model there"):
        load(tmp_path, MINIMAL, gate)
    with pytest.raises(RecipeError, match=r"evaluate\.gate\.sources names the source `zh`, but the sources are books"):
        load(tmp_path, MINIMAL, 'evaluate.gate.sources=["zh"]', "train.base_model=english")
    with pytest.raises(RecipeError, match=r"bits per byte, which a t5 does not have"):
        load(tmp_path, MINIMAL, gate, "train.base_model=english", "train.model.architecture=t5")


def test_a_key_of_another_network_is_unknown_to_this_one(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"train\.model\.qk_norm: unknown key; a gpt has it, and the architecture is bert; known"
    ):
        load(tmp_path, MINIMAL, "train.model.architecture=bert", "train.model.qk_norm=head")
    with pytest.raises(RecipeError, match=r"train\.model\.head_sice: unknown key; did you mean `head_size`"):
        load(tmp_path, MINIMAL, "train.model.architecture=t5", "train.model.head_sice=32")


def test_a_row_with_more_spans_than_sentinels_is_refused_before_anything_runs(tmp_path: Path) -> None:
    t5 = ("chunk.objective=span_corruption", "train.model.context=2048")
    with pytest.raises(RecipeError, match=r"of 2048 takes 114 spans .* vocab.sentinels = 100; .* = 114 or more"):
        load(tmp_path, MINIMAL, *t5, "vocab.sentinels=100")
    assert load(tmp_path, MINIMAL, *t5, "vocab.sentinels=114").chunk.row_length == 2274
    masks = (*t5, "chunk.denoising=mass_style")
    with pytest.raises(
        RecipeError, match=r"mass_style replaces corrupted spans by a sentinel.* Set vocab.sentinels = 1 or more"
    ):
        load(tmp_path, MINIMAL, *masks, "vocab.sentinels=0")
    assert load(tmp_path, MINIMAL, *masks, "vocab.sentinels=1").chunk.row_length == 2047
    shuffled = load(tmp_path, MINIMAL, *t5, "chunk.denoising=deshuffling", "vocab.sentinels=0")
    assert shuffled.chunk.row_length == 2047


def test_placeholders_are_filled_in_paths(tmp_path: Path) -> None:
    books, web = load(tmp_path).sample.sources
    assert books.paths == (f"{tmp_path}/books/*.txt",)
    assert web.paths == (f"{tmp_path}/root/web",)


def test_a_base_is_named_by_a_path_and_extended_by_language(tmp_path: Path) -> None:
    vocab = load(tmp_path, MINIMAL + '[vocab]\nbase = "{recipe}/base.model"\nextend = { zh = 8000, ru = 4000 }\n').vocab
    assert vocab.base == tmp_path / "base.model"
    assert vocab.extend == {"zh": 8000, "ru": 4000}


def test_a_base_model_is_named_by_a_path(tmp_path: Path) -> None:
    train = load(tmp_path, MINIMAL + '[train]\nbase_model = "{recipe}/english"\n').train
    assert train.base_model == tmp_path / "english"


def test_settings_overrule_the_recipe_by_path_and_by_name_of_a_source(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL, "dedup.threshold=0.9", "sources.web.language=de", "name=other")
    assert recipe.dedup.threshold == 0.9
    assert recipe.sample.sources[1].language == "de"
    assert recipe.name == "other"


def test_limit_is_the_share_of_each_source(tmp_path: Path) -> None:
    assert load(tmp_path, limit=0.01).sample.limit == 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[train.model]", "[dedup]\nbnads = 3\n[train.model]"), r"dedup\.bnads: unknown key; did you mean `bands`\?"),
        (("[train.model]", "[dedupe]\nbands = 3\n[train.model]"), r"dedupe: unknown key; did you mean `dedup`\?"),
        (("weight = 0.25", "weight = -0.25"), r"weight: .*greater than or equal to 0"),
        (("weight = 0.25", "weight = 0.5"), r"sample: .*weights"),
        (("weight = 0.25", "wieght = 0.25"), r"  line \d+: sources\[1\]\.wieght: unknown key; did you mean `weight`\?"),
        (("weight = 0.25", "may_leav = true"), r"sources\[1\]\.may_leav: unknown key; did you mean `may_leave`\?"),
        (("context = 64", "context = -1"), r"train\.model\.context: .*greater than or equal to 8"),
        (('"40K"', '"forty"'), r"budget_tokens is 'forty'; write a positive count"),
        (("seed = 7", "seed = 7\nformat = 2"), "this one reads format 1"),
        (("{recipe}/books", "{nowhere}/books"), r"uses `\{nowhere\}`, which nothing defines"),
        (("[train.model]", "[dedup.wipe_out_overrides]\nboks = 1.0\n[train.model]"), "names the source `boks`"),
        (
            (
                "[train.model]",
                '[[clean.classifiers]]\nname = "q"\ngood = ["books"]\nbad = ["boks"]\nlimit = 0.5\n[train.model]',
            ),
            r"clean\.classifiers `q` names the source `boks`",
        ),
        (("[train.model]", '[clean.quality]\ngood = ["boks"]\n[train.model]'), "quality.good names the source `boks`"),
        (('name = "small"', 'name = "small'), "not valid TOML"),
    ],
)
def test_a_wrong_recipe_names_its_wrong_key(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in MINIMAL
    with pytest.raises(RecipeError, match=message):
        load(tmp_path, MINIMAL.replace(*change))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.optimizer=lamb", "must be a table (found 'lamb'); did you mean `train.optimizer.kind = lamb`?"),
        ("train.schedule=fast", "must be a table (found 'fast'); its keys are decay_share, end_lr,"),
        ("train.dtype=fp16", "(found 'fp16'); did you mean `float16`?"),
        ("train.dtype=BF16", "(found 'BF16'); did you mean `bfloat16`?"),
        ("train.device=gpu", "Input should be 'cpu' or 'cuda' (found 'gpu'); did you mean `cuda`?"),
        ("train.engine=deepsped", "(found 'deepsped'); did you mean `deepspeed`?"),
        ("train.engine=zzz", "Input should be 'native', 'fsdp' or 'deepspeed' (found 'zzz')\n"),
        ("train.learning_rate=1", "train.learning_rate: unknown key; did you mean `train.schedule.peak_lr`?"),
        ("learning_rte=1", "learning_rte: unknown key; did you mean `train.schedule.peak_lr`?"),
        ("batch_rows=1", "batch_rows: unknown key; did you mean `train.batch_rows`?"),
        ("train.model.d_model=16", "train.model.d_model: unknown key; did you mean `train.model.width`?"),
    ],
)
def test_a_value_that_means_another_is_reported_so(tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(RecipeError) as reported:
        load(tmp_path, MINIMAL, setting)
    assert message in f"{reported.value}\n"


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("train.attend_within_documents=true", "train.model.attend_within_documents"),  # below
        ("train.model.zero_stage=1", "train.zero_stage"),  # above
        ("train.optimizer.peak_lr=1", "train.schedule.peak_lr"),  # beside
        ("train.model.seed=3", "train.seed"),  # other stages have one, too
        ("chunk.noise=0.2", "noise_density"),
        ("mean_noise_span=2", "chunk.mean_noise_span"),
        ("train.budget_tokens=5000", "budget_tokens"),
        ("clean.thershold=1", ""),  # like nothing of clean
    ],
)
def test_a_key_in_the_wrong_table_is_reported_where_it_belongs(tmp_path: Path, setting: str, meant: str) -> None:
    with pytest.raises(RecipeError) as reported:
        load(tmp_path, MINIMAL, setting)
    key = setting.partition("=")[0]
    assert f"  --set {setting}: {key}: unknown key; " + (
        f"did you mean `{meant}`?" if meant else "known keys: "
    ) in str(reported.value)


def test_no_sources_is_reported_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"add at least one \[\[sources\]\]"):
        load(tmp_path, 'name = "empty"\n')


@pytest.mark.parametrize("setting", ["dedup.threshold", "=3", "sources.nobody.weight=1", "name.x=1", "sources=[]"])
def test_a_setting_that_reaches_nothing_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(RecipeError):
        load(tmp_path, MINIMAL, setting)


def test_an_unknown_recipe_names_those_that_ship() -> None:
    with pytest.raises(RecipeError, match=r"quickstart.*Did you mean `quickstart`\?"):
        find_recipe("quikstart")


def test_a_recipe_that_does_not_exist_names_the_file_that_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "wiki and books.toml").touch()
    with pytest.raises(RecipeError, match=rf"Did you mean `{tmp_path}/wiki and books\.toml`\?"):
        find_recipe(str(tmp_path / "wiki_and_books.tml"))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_recipes_that_ship_are_valid(path: Path, tmp_path: Path) -> None:
    assert load_recipe(path, tmp_path).name == path.stem


def test_a_stretch_of_the_road() -> None:
    assert select_stages() == STAGES
    assert select_stages("train") == ("train", "evaluate")
    assert select_stages(until="clean") == ("sample", "clean")
    assert select_stages("clean", "dedup") == ("clean", "dedup")
    assert select_stages("dedup", "dedup") == select_stages(only="dedup") == ("dedup",)
    for asked in (("trian",), (None, "x"), (None, None, "x"), ("train", None, "dedup"), (None, "dedup", "dedup")):
        with pytest.raises(BessemerError):
            select_stages(*asked)
    with pytest.raises(BessemerError, match="clean comes before dedup"):
        select_stages("dedup", "clean")


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ('sources.notes.paths=["s3://AKIA:h1dden/KEY@bucket/x"]', "sources[0].paths[0]"),
        ('sources.notes.paths=["https://host/x?X-Amz-Signature=h1dden"]', "sources[0].paths[0]"),
        ('variables.store="https://me:h1dden@host"', "variables.store"),
        ('train.base_model="https://me:h1dden@host/x"', "train.base_model"),
    ],
)
def test_an_address_with_credentials_is_refused_and_the_secret_not_reported(
    foundry: Path, tmp_path: Path, setting: str, place: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe(foundry / "foundry.toml", tmp_path, [setting])
    assert f"{place} is " in str(refused.value)
    assert "h1dden" not in str(refused.value)


def test_credentials_that_placeholders_make_are_refused_too(foundry: Path, tmp_path: Path) -> None:
    settings = ['variables.key="AKIA:h1dden"', 'sources.notes.paths=["s3://{key}@bucket/x"]']
    with pytest.raises(RecipeError) as refused:
        load_recipe(foundry / "foundry.toml", tmp_path, settings)
    assert "sources[0].paths[0] is s3://***@bucket/x" in str(refused.value)
    assert "sources[0].paths[0] is s3://***@bucket/x" in str(refused.value)


def test_machines_are_said_once_for_all_stages_that_spread_their_parts_and_may_differ_in_one(tmp_path: Path) -> None:
    said = ("machines.executor=dask", "machines.address=tcp://head:8786")
    recipe = load(tmp_path, MINIMAL, *said, "chunk.machines.executor=threads")
    for stage in ("clean", "dedup", "decontaminate"):
        assert getattr(recipe, stage).machines.address == "tcp://head:8786"
    assert (recipe.chunk.machines.executor, recipe.chunk.machines.address) == ("threads", None)
    with pytest.raises(RecipeError, match=r"(?s)machines: executor = \"dask\" needs.*\Z") as reported:
        load(tmp_path, MINIMAL, said[0])
    assert len(str(reported.value).splitlines()) == 2
    with pytest.raises(RecipeError, match=r"machines\.executor: .*did you mean `dask`\?"):
        load(tmp_path, MINIMAL, "machines.executor=Dask")
