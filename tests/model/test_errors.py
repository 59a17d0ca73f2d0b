"""Exit codes are an interface: scripts and systemd act on them."""

import re
from pathlib import Path

import pytest

import model.errors
from model.config.train import read_run
from model.errors import BessemerError, RecipeError

PAGE = Path(__file__).parents[2] / "docs" / "recover.md"


def test_codes_and_retries_are_those_of_the_page():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .* \| (yes|no) \|$", PAGE.read_text(), re.MULTILINE)
    written = {name: (int(code), again == "yes") for code, name, again in rows}
    classes = [one for one in vars(model.errors).values() if isinstance(one, type) and issubclass(one, BessemerError)]
    assert written == {one.__name__: (one.exit_code, one.retryable) for one in classes if one is not BessemerError}


def test_wrong_values_of_a_run_s_file_are_named_on_one_line(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"train": {"batch_rows": "x", "micro_batch_rows": 3}}')
    with pytest.raises(
        RecipeError, match=r"run\.json: .*; train\.batch_rows: Input should be a valid integer.*"
    ) as refused:
        read_run(tmp_path / "run.json")
    assert "\n" not in str(refused.value)
