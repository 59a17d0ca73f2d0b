"""The plan of the small corpus: a pilot for real, its plan against what the pipeline then gives, and the command."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.inspection.all_keys import write_recipe
from flows.inspection.scan import scan_folder
from flows.planning.calculator import PlanOptions
from flows.planning.estimate import Interval, SourceEstimate, heldout_share, kept_share
from flows.planning.plan import estimate_mixture, plan_from_declared_sizes, plan_recipe
from flows.planning.terminal import print_plan
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.runs.pipeline import BUILDERS
from model.errors import RecipeError
from tasks.artifacts.build import ProgressListener, RunContext
from tasks.decontaminate.config import DecontaminateConfig
from tests.command import invoke

ASKED = PlanOptions(hardware="h200", devices=8, days=1.0, price=3.5)


@pytest.fixture(scope="module")
def recipe(foundry: Path, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return load_recipe(foundry / "foundry.toml", tmp_path_factory.mktemp("unused"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def reported(recipe: Recipe, root: Path) -> dict[str, Any]:
    return plan_recipe(recipe, root, 0.01, ASKED, ProgressListener())


def test_small_sources_are_taken_whole_and_reported(reported: dict[str, Any]):
    assert {name: source["share"] for name, source in reported["pilot"]["sources"].items()} == {
        "notes": 1.0,
        "code": 1.0,
    }
    assert any("the pilot's share of notes, code was raised" in warning for warning in reported["warnings"])


def test_a_whole_pilot_foresees_what_the_road_gives(reported: dict[str, Any], recipe: Recipe, root: Path):
    context = RunContext(root, run_id="whole")
    documents = BUILDERS["sample"](context, recipe.sample)
    cleaned = BUILDERS["clean"](context, documents, recipe.clean)
    unique = BUILDERS["dedup"](context, cleaned, recipe.dedup)
    stages = {line["stage"]: line for line in reported["stages"]}
    for artifact in (documents, cleaned, unique):
        found = artifact.report.total()
        assert stages[artifact.stage]["documents"].value == found.documents_out
        assert stages[artifact.stage]["bytes"].value == pytest.approx(found.bytes_out)


def test_sources_that_are_too_small_are_named_in_one_line_and_the_key_as_a_recipe_writes_it(recipe: Recipe):
    """Weights of 3 and 1: of 320 rows 240 and 80 are asked for, and there are 10 of each, and none of a third."""
    chunk = recipe.chunk.model_copy(
        update={"budget_tokens": 320 * recipe.chunk.most_tokens, "weights": {"a": 3.0, "b": 1.0, "c": 0.0}}
    )
    ten, none = Interval(*[10.0 * recipe.chunk.row_length] * 3), Interval(0.0, 0.0, 0.0)
    sources = {
        name: SourceEstimate({}, {"sample": ten}, tokens, 0.0, none, 0.0)
        for name, tokens in (("a", ten), ("b", ten), ("c", none))
    }
    empty, repeated, total = estimate_mixture(recipe.model_copy(update={"chunk": chunk}), sources)["warnings"]
    assert empty == "too little text is left to fill a sequence: c"
    assert repeated.startswith("weights that need more than 4 epochs, ")
    assert repeated.endswith(" (max_epochs = 4 is the limit): a 24.0, b 8.0")
    assert total.endswith(" within max_epochs = 4; training ends there")


def test_every_stage_was_measured(reported: dict[str, Any]):
    assert all(line["seconds"] > 0 and line["disk_bytes"] > 0 for line in reported["stages"])
    assert all(10e6 < line["pilot_peak_bytes"] < 10e9 for line in reported["stages"])


def test_training_reads_the_budget_and_eight_devices_cost_eight_prices(reported: dict[str, Any]):
    training = reported["training"]
    assert training["tokens"] <= 40_000
    assert training["cost"] == pytest.approx(3.5 * 8 * 24 * training["days"])
    assert reported["optimal_sizes"]["bound"] == "data"


def test_the_lines_for_the_recipe_may_be_pasted_into_one_that_init_wrote(reported: dict[str, Any], tmp_path: Path):
    console = Console(file=io.StringIO(), width=80)
    print_plan(reported, console)
    printed = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    lines = [line for line in printed.splitlines() if line.startswith(("slack = ", "tokens_per_byte = "))]
    for name in ("notes", "code"):
        (tmp_path / "text" / name).mkdir(parents=True)
        (tmp_path / "text" / name / "a.txt").write_text("The furnace was lit before dawn. " * 20)
    written = write_recipe(scan_folder(tmp_path / "text"), "mine")
    (tmp_path / "mine.toml").write_text(written.replace("[sample]\n", "\n".join(["[sample]", *lines, ""])))
    measured = load_recipe(tmp_path / "mine.toml", tmp_path).sample
    assert measured.slack == 1.2
    assert measured.tokens_per_byte == {
        line["source"]: pytest.approx(line["tokens_per_byte"], rel=1e-3) for line in reported["sources"]
    }


def test_a_second_pilot_is_reused(reported: dict[str, Any], recipe: Recipe, root: Path):
    again = plan_recipe(recipe, root, 0.01, ASKED, ProgressListener())
    assert again == reported


def test_the_processor_says_nothing_of_devices(reported: dict[str, Any], recipe: Recipe, root: Path):
    train = recipe.train.model_copy(update={"device": "cuda", "ranks": 4, "dtype": "bfloat16"})
    found = plan_recipe(
        recipe.model_copy(update={"train": train}), root, 0.01, PlanOptions(days=1.0), ProgressListener()
    )
    training = found["training"]
    assert {name for name, value in training.items() if value is None} == {
        *("peak_flops", "days", "device_hours", "mfu", "sustained_flops", "cost", "memory_bytes", "price", "arithmetic")
    }
    assert training["flops"] == reported["training"]["flops"]
    # 4 bytes of weight and 4 of gradient on each, and a fourth of moments and of ZeRO's copy, 12.
    zero = training["memory"]["ZeRO-1"]
    assert zero.weights + zero.gradients + zero.optimizer == 11 * training["parameters"]
    assert found["optimal_sizes"]["parameters_by_data"] == reported["optimal_sizes"]["parameters_by_data"]
    assert any("its speed is not known here" in warning for warning in found["warnings"])
    console = Console(file=io.StringIO(), width=80)
    print_plan(found, console)
    printed = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "4 x cuda" in printed
    assert "TFLOP/s" not in printed
    assert "on this hardware" not in printed


def test_this_processor_is_known_by_the_steps_it_makes_and_without_a_share(recipe: Recipe, root: Path):
    found = plan_recipe(recipe, root, 0.01, PlanOptions(days=1.0), ProgressListener())
    training = found["training"]
    assert training["mfu"] is training["peak_flops"] is None
    assert training["hardware_source"].startswith("measured: ")
    # The time is that of the measured rate, which is its own peak.
    rate = training["sustained_flops"]
    assert training["days"] == pytest.approx(training["flops"] / rate / 86_400)
    assert found["optimal_sizes"]["bound"] in ("data", "hours")
    console = Console(file=io.StringIO(), width=80)
    print_plan(found, console)
    printed = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "MFU" not in printed
    assert "tokens/s" in printed
    assert "activations" in printed


def test_half_a_corpus_foresees_the_other_half(tmp_path: Path):
    """2,000 short notes, a third of them too short to keep; the pilot takes 300 and the truth lies in the interval."""
    notes = tmp_path / "notes.jsonl"
    long = " ".join(f"the word that{number} and of with be have" for number in range(40))
    lines = [f"{long} {number}" if number % 3 else f"too short {number}" for number in range(2000)]
    notes.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    text = f"""
        name = "half"
        budget_tokens = "1M"
        [[sources]]
        name = "notes"
        paths = ["{notes}"]
        weight = 1.0
        [clean]
        preset = "minimal"
        add = ["gopher_words_min"]
        [dedup]
        wipe_out_limit = 1.0
        [vocab]
        vocab_size = 300
        [train.model]
        context = 64
        layers = 1
        heads = 1
        width = 16
    """
    (tmp_path / "half.toml").write_text(text)
    half = load_recipe(tmp_path / "half.toml", tmp_path)
    reported = plan_recipe(half, tmp_path / "root", 0.01, ASKED, ProgressListener())
    assert 0.1 < reported["pilot"]["sources"]["notes"]["share"] < 0.3
    stages = {line["stage"]: line["documents"] for line in reported["stages"]}
    assert stages["sample"].value == 2000
    assert stages["clean"].low <= 1333 <= stages["clean"].high
    assert stages["clean"].high - stages["clean"].low < 400


def test_the_share_held_out_follows_the_tightest_limit():
    config = DecontaminateConfig()
    assert heldout_share(10_000, 1e6, config) == 0.02
    assert heldout_share(100, 1e6, config) == 0.04  # at least 4 documents
    assert heldout_share(5, 1e6, config) == 0.2  # at most a fifth
    assert heldout_share(1_000_000, 1e6, config) == 0.002  # at most 2,000 documents
    assert heldout_share(10_000, 4e9, config) == 0.001  # at most 4 MB
    assert kept_share(10_000, 1e6, config) == Interval(0.98, 0.98, 0.98)
    assert kept_share(100, 1e6, config) == Interval(0.8, 0.96, 1.0)  # four documents of any length


def test_sizes_that_are_stated_are_planned_with_and_others_are_not_known(foundry: Path, tmp_path: Path):
    text = (foundry / "foundry.toml").read_text()
    text = text.replace("{recipe}/notes", "{recipe}/absent").replace('"{STDLIB}', '"{recipe}/absent')
    text = re.sub(r'paths = \["(?!\{recipe\})[^]]*\]', 'paths = ["{recipe}/absent"]', text)
    text = text.replace('weight = 0.5\nlanguage = "en"', 'weight = 0.5\nlanguage = "en"\ntokens = "1K"')
    file = tmp_path / "stated.toml"
    file.write_text(text.replace("{recipe}/cloze.jsonl", str(foundry / "cloze.jsonl")))
    invoke("estimate", file, "--root", tmp_path / "root")
    assert not (tmp_path / "root").exists(), "nothing was run"
    reported = plan_from_declared_sizes(load_recipe(file, tmp_path), PlanOptions())
    assert [line["tokens"] for line in reported["sources"]] == [1000, None]
    assert [line["epochs"] is None for line in reported["sources"]] == [False, True]
    by_size = re.sub(r"(?m)^weight = .*$", "", file.read_text()).replace("seed = 7", "seed = 7\ntemperature = 2")
    file.write_text(by_size)
    with pytest.raises(RecipeError, match=r"temperature = 2\).* code declares no size"):
        plan_from_declared_sizes(load_recipe(file, tmp_path), PlanOptions())


@pytest.mark.parametrize(
    ("written", "tokens"), [("700", 700), ("40K", 40_000), ("1.5m", 1_500_000), ("2B", 2 * 10**9), ("3 T", 3 * 10**12)]
)
def test_a_budget_is_a_number_with_its_multiple(foundry: Path, tmp_path: Path, written: str, tokens: int):
    file = foundry / "budget.toml"
    file.write_text((foundry / "foundry.toml").read_text().replace('"40K"', f'"{written}"'))
    assert load_recipe(file, tmp_path).chunk.budget_tokens == tokens


@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        (PlanOptions(tokens=1e9), r"--tokens 1\.0B is for the calculator.*--set budget_tokens="),
        (PlanOptions(parameters=1e6), r"--parameters 1\.0M is for the calculator.*--set train\.model\.width="),
        (PlanOptions(layers=4, width=8, context=8), r"--layers 4 is for the calculator.*--set train\.model\.layers="),
    ],
)
def test_sizes_are_the_recipe_s_own(recipe: Recipe, root: Path, asked: PlanOptions, reported: str):
    """Whether its text is here or not."""
    with pytest.raises(RecipeError, match=reported):
        plan_recipe(recipe, root, 0.01, asked, ProgressListener())
    with pytest.raises(RecipeError, match=reported):
        plan_from_declared_sizes(recipe, asked)


def test_the_command_calculates_and_refuses():
    numbers = ("--tokens", "300B", "--parameters", "100B", "--hardware", "a100", "--devices", "800", "--days", "65")
    reported = json.loads(invoke("estimate", *numbers, "--json").stdout)
    assert reported["mfu"] == pytest.approx(0.128, abs=0.001)
    assert reported["memory"]["ZeRO-1"]["at_least"] == pytest.approx((8 + 12 / 800) * 100e9, rel=1e-3)
    assert reported["memory"]["ZeRO-1"]["total"] is None
    printed = invoke("estimate", *numbers).stdout
    assert "12.8%" in printed
    assert max(map(len, printed.splitlines())) <= 80
    refused = invoke("estimate", "--tokens", "many", code=2)
    assert "write a positive count" in refused.stderr
