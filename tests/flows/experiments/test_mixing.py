"""A mixture found by the command: proxies share all but their rows, and the weights keep their bounds."""

import json
from collections import Counter
from pathlib import Path

import pytest

from flows.recipe.load import load_recipe
from flows.runs.record import list_runs
from tests.command import bessemer

SECONDS = 1800.0
SMALL = """
threads = 1

[evaluate]
shots = [0]
heldout_max_bytes = 4000
ngram_tokens = 1000
sample_tokens = 1
temperatures = [0.0]
bootstrap_rounds = 10
threads = 1

[mix]
proxies = 9
seeds = 2
floor = 0.1

[mix.settings]
"train.model.width" = 16
"chunk.budget_tokens" = 8000
"""


@pytest.mark.prove
def test_proxies_find_shares_within_the_bounds_from_data_that_are_built_once(foundry: Path, tmp_path: Path) -> None:
    recipe, root = tmp_path / "small.toml", tmp_path / "root"
    recipe.write_text((foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry)) + SMALL)
    found = json.loads(bessemer("study", "mix", recipe, "--root", root, "--json").stdout)
    built = Counter(
        entry["stage"] for record in list_runs(root) for entry in record["stages"] if entry["outcome"] == "built"
    )
    assert built == {
        **dict.fromkeys(("sample", "clean", "dedup", "decontaminate", "vocab"), 1),
        "chunk": 9,
        **dict.fromkeys(("train", "evaluate"), 10),
    }
    assert sum(found["weights"].values()) == pytest.approx(1)
    assert min(found["weights"].values()) >= 0.1 - 1e-6
    assert all(found["weights"][name] <= found["most"][name] + 1e-6 for name in found["sources"])
    assert found["predicted"] <= found["predicted_prior"] + 1e-9
    assert found["gain"]["low"] <= found["gain"]["value"] <= found["gain"]["high"]
    assert found["seeds"]["low"] < found["seeds"]["value"] < found["seeds"]["high"]
    mixed = load_recipe(Path(found["recipe"]), root)
    assert mixed.chunk.weights == pytest.approx(found["weights"])
