"""The recipes of published models load, and say the mixtures that were published."""

import pytest

from flows.planning.calculator import PlanOptions
from flows.planning.cost_model import network_of
from flows.planning.plan import has_local_text, plan_from_declared_sizes
from flows.recipe.load import find_recipe, load_recipe
from model.errors import RecipeError
from model.nn.factory import flops_per_token
from tasks.sample.mixture import plan_from_sizes

B = 10**9


def shipped(name, tmp_path, settings=()):
    return load_recipe(find_recipe(name), tmp_path, settings)


UNTRACED = ("train.compile=true", "train.engine=fsdp", "train.zero_stage=1")
"""With it the plan of a training has no activations, which are traced for 3 to 15 s; `test_memory.py` has them."""


@pytest.mark.parametrize("name", ["gpt3", "opt_175b", "yalm_100b", "bert_base", "t5_base"])
def test_sample_and_chunk_are_reported_the_same_mixture(tmp_path, name):
    recipe = shipped(name, tmp_path)
    assert recipe.sample.budget_tokens == recipe.chunk.budget_tokens
    assert recipe.sample.max_epochs == recipe.chunk.max_epochs
    assert recipe.sample.temperature == recipe.chunk.temperature
    weights = {source.name: source.weight for source in recipe.sample.sources if source.weight is not None}
    assert recipe.chunk.weights == weights
    assert set(recipe.dedup.priorities) == {source.name for source in recipe.sample.sources}


def test_gpt3_reads_300b_tokens_with_the_shares_of_its_table(tmp_path):
    sample = shipped("gpt3", tmp_path).sample
    plans = plan_from_sizes(sample, {}, {})
    assert sum(plan["target_tokens"] for plan in plans.values()) == 300 * B
    # 0.60 of 1.01, and so on.
    assert {name: round(plan["weight"], 3) for name, plan in plans.items()} == {
        "common_crawl": 0.594,
        "webtext2": 0.218,
        "books1": 0.079,
        "books2": 0.079,
        "wikipedia": 0.030,
    }


def test_opt_reads_180b_tokens_about_once_each(tmp_path):
    sample = shipped("opt_175b", tmp_path).sample
    plans = plan_from_sizes(sample, {}, {})
    assert sample.budget_tokens == 180 * B
    assert all(abs(plan["epochs"] - 1) < 0.01 for plan in plans.values())


def test_yalm_reads_a_quarter_english_and_dialogues_as_threads(tmp_path):
    sample = shipped("yalm_100b", tmp_path).sample
    english = sum(source.weight or 0 for source in sample.sources if source.language == "en")
    everything = sum(source.weight or 0 for source in sample.sources)
    assert sample.budget_tokens == 300 * B
    assert everything == pytest.approx(1.01)
    assert round(english / everything, 2) == 0.25
    (dialogues,) = (source for source in sample.sources if source.thread is not None)
    assert (dialogues.name, dialogues.language) == ("dialogues_ru", "ru")


def test_a_size_may_be_written_as_a_count(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(
        'name = "r"\nbudget_tokens = "1K"\ntemperature = 2\nmax_epochs = 8\n'
        '[[sources]]\nname = "s"\npaths = ["x"]\ntokens = "1.5M"\n'
    )
    recipe = load_recipe(path, tmp_path)
    assert recipe.sample.sources[0].tokens == 1_500_000
    assert (recipe.sample.temperature, recipe.chunk.temperature) == (2, 2)
    assert (recipe.sample.max_epochs, recipe.chunk.max_epochs) == (8, 8)


def test_without_text_the_plan_is_the_table_of_gpt3(tmp_path):
    recipe = shipped("gpt3", tmp_path)
    assert not has_local_text(recipe.sample)
    reported = plan_from_declared_sizes(recipe, PlanOptions(hardware="this"))
    assert {line["source"]: round(line["epochs"], 2) for line in reported["sources"]} == {
        "common_crawl": 0.43,
        "webtext2": 3.44,
        "books1": 1.98,
        "books2": 0.43,
        "wikipedia": 2.97,
    }
    assert reported["training"] is None
    assert any("wikipedia 2.48 to 3.47 epochs" in warning for warning in reported["warnings"])


def test_with_the_hardware_named_the_plan_says_the_training_of_yalm(tmp_path):
    reported = plan_from_declared_sizes(
        shipped("yalm_100b", tmp_path, UNTRACED), PlanOptions(hardware="a100", devices=800, days=65)
    )
    assert reported["training"]["parameters"] == pytest.approx(101e9, rel=0.005)
    assert reported["training"]["mfu"] == pytest.approx(0.13, abs=0.01)
    epochs = {line["source"]: line["epochs"] for line in reported["sources"] if line["epochs"] is not None}
    # 0.49 of 1.01 times 300B of the 1 TB that was left of the Russian web.
    assert epochs == {"web_ru": pytest.approx(0.933, abs=0.001), "pile": pytest.approx(0.371, abs=0.001)}


@pytest.mark.parametrize(
    ("name", "parameters", "flops", "epochs"),
    [
        # 3.14e23 FLOPs are published (Brown et al. 2020, appendix D), without attention: 6 x 174.6B x 300B.
        ("gpt3", 175e9, 3.14e23, 0.43),
        ("opt_175b", 175e9, 6 * 174.6e9 * 180e9, 1.0),
        ("bert_base", 110e6, 6 * 110e6 * 131e9, 39.7),
        ("t5_base", 223e6, 6 * 223e6 * 34.4e9, 0.22),
    ],
)
def test_parameters_flops_and_epochs_are_the_published_ones(
    name: str, parameters: float, flops: float, epochs: float, tmp_path
):
    reported = plan_from_declared_sizes(shipped(name, tmp_path, UNTRACED), PlanOptions(hardware="a100", devices=8))
    training = reported["training"]
    assert training["parameters"] == pytest.approx(parameters, rel=0.005)
    assert 6 * training["parameters"] * training["tokens"] == pytest.approx(flops, rel=0.005)
    assert min(line["epochs"] for line in reported["sources"]) == pytest.approx(epochs, rel=0.02)


def test_the_work_is_that_of_the_network_by_which_training_reports_its_mfu(tmp_path):
    """A BERT's head reads the hidden tokens alone, and a token of T5 passes one of the stacks."""
    recipes = {name: shipped(name, tmp_path, UNTRACED) for name in ("bert_base", "t5_base")}
    found = {
        name: plan_from_declared_sizes(recipe, PlanOptions(hardware="a100", devices=8))["training"]
        for name, recipe in recipes.items()
    }
    for name, recipe in recipes.items():
        assert found[name]["flops_per_token"] == flops_per_token(network_of(recipe))
        assert found[name]["flops"] == found[name]["flops_per_token"] * found[name]["tokens"]
        assert found[name]["attention"] == "with attention"
    # Blocks of 12 (4 + 8) 768^2 weights, 15% of a head of 30,522 words, and scores of 512 tokens.
    blocks, head, scores = 12 * 12 * 768**2, 30_522 * 768 + 768**2, 12 * 12 * 768 * 512
    assert found["bert_base"]["flops_per_token"] == pytest.approx(6 * (blocks + 0.15 * head) + scores, rel=1e-3)


def test_days_and_speed_give_the_number_of_devices(tmp_path):
    recipe = shipped("yalm_100b", tmp_path, UNTRACED)
    asked = PlanOptions(hardware="a100", devices=None, days=65.0, mfu=0.4)
    training = plan_from_declared_sizes(recipe, asked)["training"]
    assert training is not None
    needed = training["flops"] / (training["peak_flops"] * 0.4 * 65 * 86400)
    assert needed <= training["devices"] < needed + 1


def test_shares_by_size_need_sizes(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text('name = "r"\nbudget_tokens = "1K"\ntemperature = 1\n[[sources]]\nname = "s"\npaths = ["x"]\n')
    with pytest.raises(RecipeError, match="s declares no size"):
        plan_from_declared_sizes(load_recipe(path, tmp_path), PlanOptions(hardware="this"))


def test_a_recipe_with_text_takes_its_pilot(foundry):
    assert has_local_text(load_recipe(foundry / "foundry.toml", foundry).sample)
