"""Ladders as people write them, and the report of one whose losses follow a law."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.experiments.ladder import LADDERS, LadderConfig, scale_points
from flows.experiments.scaling import check_measured
from flows.experiments.scaling_law import ScalePoint, write_ladder
from flows.experiments.studies import RunResult, read_config
from flows.recipe.load import shipped_file
from model.checksummed_json import read_sealed
from model.errors import GuardError, RecipeError

SIZES = [{"width": width, "layers": 2, "heads": 2} for width in (16, 32, 64, 128)]


def block_weights(width: int, layers: int) -> int:
    """4 d^2 of attention, and three matrices of a gated MLP whose hidden size is 8 d / 3, rounded up to eights."""
    hidden = -(-8 * width // 24) * 8
    return layers * (4 * width**2 + 3 * width * hidden)


def law(parameters: float) -> float:
    return 1.5 + 20 * parameters**-0.3


def rungs(measured: int) -> list[ScalePoint]:
    """The first `measured` sizes have two runs each, on the law but for a thousandth."""
    found: list[ScalePoint] = []
    for number, size in enumerate(SIZES):
        parameters = block_weights(size["width"], size["layers"])
        runs = {
            seed: RunResult(
                values={"bits per byte": law(parameters) * (1 + 0.001 * (seed - 1.5))}, run_id=f"run-{seed}"
            )
            for seed in (1, 2)
            if number < measured
        }
        found.append(ScalePoint(f"{size['layers']} layers of {size['width']}", parameters, 20 * parameters, runs))
    return found


def test_the_largest_is_predicted_before_it_is_measured(tmp_path: Path) -> None:
    before = write_ladder(tmp_path, "bits per byte", 20.0, rungs(3))
    truth = law(block_weights(128, 2))
    assert before["prediction"]["loss"] == pytest.approx(truth, rel=0.005)
    assert before["prediction"]["low"] < truth < before["prediction"]["high"]
    assert before["outcome"].endswith("not measured yet")
    after = write_ladder(tmp_path, "bits per byte", 20.0, rungs(4))
    assert after["law"] == before["law"]
    assert after["prediction"]["within_interval"] is True
    assert abs(after["prediction"]["relative_error"]) < 0.005
    assert read_sealed(tmp_path / "table.json", "")["prediction"] == after["prediction"]
    weights = block_weights(128, 2)
    assert f"| 2 layers of 128 | {weights:,} | {20 * weights:,} |" in (tmp_path / "table.md").read_text().replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert "2 layers of 128" in (tmp_path / "page.html").read_text()


def test_a_ladder_half_way_up_says_how_far_it_is(tmp_path: Path) -> None:
    found = write_ladder(tmp_path, "bits per byte", 20.0, rungs(2))
    assert found["law"] is None
    sentence = "2 of 4 sizes are measured; the law takes all but the largest, and more than 3 runs of these"
    assert found["outcome"] == sentence


def test_a_ladder_with_a_failed_run_of_each_size_has_no_law_yet(tmp_path: Path) -> None:
    """Three runs of three sizes cannot determine three unknowns and their scatter."""
    points = rungs(3)
    for point in points[:3]:
        point.runs[2] = RunResult(run_id="run-2", cause="GuardError: too little text")
    found = write_ladder(tmp_path, "bits per byte", 20.0, points)
    assert (found["law"], found["prediction"]) == (None, None)
    assert found["outcome"].startswith("3 of 4 sizes are measured")


def test_every_size_reads_by_its_weights(foundry: Path, tmp_path: Path) -> None:
    asked = LadderConfig.model_validate({"sizes": list(reversed(SIZES)), "tokens_per_parameter": 10})
    found = scale_points(asked, foundry / "foundry.toml", tmp_path, (), 1.0)
    assert [rung.parameters for rung in found] == [block_weights(size["width"], 2) for size in SIZES]
    assert [rung.tokens for rung in found] == [10 * rung.parameters for rung in found]
    alike = LadderConfig.model_validate({"sizes": SIZES, "tokens": 70_000})
    assert {rung.tokens for rung in scale_points(alike, foundry / "foundry.toml", tmp_path, (), 1.0)} == {70_000}


def test_shapes_of_the_same_number_of_weights_are_no_sizes_of_a_law(foundry: Path, tmp_path: Path) -> None:
    """Four layers of 48 have the weights of one of 96; the fit would fail after hours of training."""
    shapes = [(16, 1), (24, 2), (48, 4), (96, 1)]
    sizes = [{"width": width, "layers": layers, "heads": 2} for width, layers in shapes]
    assert block_weights(48, 4) == block_weights(96, 1)
    found = LadderConfig.model_validate({"sizes": sizes})
    with pytest.raises(RecipeError, match=r"needs 4 different numbers .* the ladder has 3: .*4 layers of 48"):
        scale_points(found, foundry / "foundry.toml", tmp_path, (), 1.0)
    more = LadderConfig.model_validate({"sizes": [*sizes, {"width": 128, "layers": 1, "heads": 2}]})
    assert len(scale_points(more, foundry / "foundry.toml", tmp_path, (), 1.0)) == 5
    tied = LadderConfig.model_validate({"sizes": [*sizes, {"width": 32, "layers": 2, "heads": 2}]})
    with pytest.raises(RecipeError, match=r"must be larger than all others: 4 layers of 48 .* 1 layers of 96"):
        scale_points(tied, foundry / "foundry.toml", tmp_path, (), 1.0)


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"sizes": SIZES[:3]}, r"ladder\.toml:\n  a ladder needs 4 sizes at least; it has 3$"),
        ({"sizes": [*SIZES, SIZES[0]]}, r"ladder\.toml:\n  two sizes are the same$"),
        ({"sizes": SIZES, "seeds": 1}, r"ladder\.toml:\n  4 sizes of 1 seed, the largest held back, leave 3 runs"),
        ({"sizes": [{**SIZES[0], "depth": 3}, *SIZES[1:]]}, r"ladder\.toml:\n  sizes\.0\.depth: "),
    ],
)
def test_a_wrong_ladder_says_what_is_wrong(tmp_path: Path, values: dict, reported: str) -> None:
    file = tmp_path / "ladder.toml"
    lines = [f"seeds = {values.get('seeds', 2)}"]
    for size in values["sizes"]:
        lines += ["[[sizes]]", *(f"{key} = {value}" for key, value in size.items())]
    file.write_text("\n".join(lines))
    with pytest.raises(RecipeError, match=reported):
        read_config(LadderConfig, file)


def test_those_that_ship_can_be_read() -> None:
    assert [read_config(LadderConfig, path).measure for path in LADDERS.glob("*.toml")] == ["bits per byte"]
    with pytest.raises(RecipeError, match=r"ladder `none`: .* \(small\)"):
        shipped_file("none", LADDERS, "ladder")


def test_the_help_says_what_it_does() -> None:
    reported = CliRunner().invoke(app, ["study", "scale", "--help"])
    assert "predict the largest before it is trained" in " ".join(reported.stdout.split())


def test_a_size_of_which_no_run_came_to_a_number_ends_the_ladder_with_the_cause() -> None:
    (rung,) = rungs(measured=1)[:1]
    check_measured(rung, "bits per byte")
    with pytest.raises(GuardError, match="they measure bits per byte, and the ladder's `measure` asks for `bits`"):
        check_measured(rung, "bits")
    rung.runs[1] = RunResult(cause="Numerics: the loss is no number", run_id="run-1")
    check_measured(rung, "bits per byte")
    rung.runs[2] = RunResult(cause="Numerics: the loss is no number", run_id="run-2")
    with pytest.raises(GuardError, match=r"no run of 2 layers of 16 has a result \(Numerics: the loss"):
        check_measured(rung, "bits per byte")
