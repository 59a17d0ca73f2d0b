"""Before a nightly run all that is missing is reported at once, with the exit code of what a person must mend."""

import shutil
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.nightly.config import NightlyConfig
from flows.nightly.history import Night
from flows.nightly.preflight import check_night, describe_needs, expected_needs
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from model.errors import Infra, InputError, RecipeError

NEW = {"notes": {"note-01.txt": "ab"}}


@pytest.fixture
def recipe(foundry: Path, tmp_path: Path) -> Recipe:
    return load_recipe(foundry / "foundry.toml", tmp_path)


class Before:
    """An artifact of the night before as far as a preflight looks at it: it took `seconds` for `bytes_in` bytes."""

    def __init__(self, seconds: float, bytes_in: int = 0, tokens_s: float = 0.0) -> None:
        self.manifest = {"timings": {"seconds": seconds}}
        self.report: Any = self
        self.bytes_in = bytes_in
        self.facts = {"training": {"tokens_s": tokens_s}, "exact": True}

    def total(self) -> "Before":
        return self


def test_a_night_is_expected_to_take_what_the_one_before_took(recipe: Recipe) -> None:
    text = expected_needs(recipe, {}, measure=False).text_bytes
    before: Any = {"sample": Before(10.0, bytes_in=2 * text), "train": Before(99.0, tokens_s=1000.0)}
    before |= {"evaluate": Before(7.0), "clean": Before(30.0)}
    # Half the text of the night before: 40 s / 2 for the data; 40,000 tokens at 1,000 a second; the same scores.
    assert expected_needs(recipe, before, measure=False).seconds == pytest.approx(20 + 40 + 7)
    assert expected_needs(recipe, {}, measure=False).seconds is None


def test_the_pace_is_that_of_the_night_that_read_most(recipe: Recipe) -> None:
    """A small night takes its time for other things than its bytes."""
    text = expected_needs(recipe, {}, measure=False).text_bytes
    before: Any = {"sample": Before(30.0, bytes_in=1000), "train": Before(99.0, tokens_s=1000.0)}
    large = Night("a", "r", read_bytes=4 * text, data_seconds=80.0)
    small = Night("b", "r", read_bytes=10, data_seconds=50.0)
    needs = expected_needs(recipe, before, [small, large, Night("c", "r")], measure=False)
    assert needs.data_seconds == pytest.approx(20.0)
    assert needs.seconds == pytest.approx(20 + 40)


def test_a_night_that_is_too_long_for_its_text_alone_is_reported_so(recipe: Recipe, tmp_path: Path) -> None:
    before: Any = {"sample": Before(1.0, bytes_in=1), "train": Before(1.0, tokens_s=1e9)}
    config = NightlyConfig(max_hours=1, spare_gigabytes=0)
    with pytest.raises(RecipeError, match=r"of it before training, for .* of new text: add fewer files"):
        check_night(recipe, NEW, tmp_path, config, before, None)


def test_disk_is_the_text_six_times_and_the_checkpoints(recipe: Recipe) -> None:
    from flows.planning.cost_model import network_of
    from model.nn.factory import parameter_count

    needs = expected_needs(recipe, {}, measure=False)
    # Weights once, and two checkpoints and the one being written of 12 bytes a parameter.
    assert needs.disk_bytes == 6 * needs.text_bytes + parameter_count(network_of(recipe)) * (4 + 3 * 12)
    assert describe_needs(needs).startswith("up to ")


def test_a_night_with_space_for_all_begins(recipe: Recipe, tmp_path: Path) -> None:
    assert check_night(recipe, NEW, tmp_path, NightlyConfig(spare_gigabytes=0), {}, None).text_bytes > 0


def test_all_that_is_missing_is_reported_at_once(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10**6})())
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 10**6})())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{probe.getsockname()[1]}/api"
        with pytest.raises(Infra) as caught:
            check_night(recipe, NEW, tmp_path, NightlyConfig(), {}, server)
    reported = str(caught.value)
    assert "disk: 1.0 MB free under" in reported
    assert "plus a reserve of 1 GB" in reported
    assert "memory: 1.0 MB free" in reported
    assert f"server: the Prefect server at {server} does not answer" in reported
    lost = {"notes": {"a.txt": "unreadable", "b.txt": "ab"}}
    with pytest.raises(InputError, match=r"files that cannot be read: notes: a\.txt;"):
        check_night(recipe, lost, tmp_path, NightlyConfig(), {}, None)


def test_a_server_that_asks_for_a_password_answers(recipe: Recipe, tmp_path: Path, webhook: Any) -> None:
    config = NightlyConfig(spare_gigabytes=0)
    with webhook() as (address, _), pytest.raises(Infra, match="answers 501"):
        check_night(recipe, NEW, tmp_path, config, {}, address)
    with webhook(get=401) as (address, _):
        assert check_night(recipe, NEW, tmp_path, config, {}, address)


def test_a_night_that_is_too_long_is_the_recipe_s_to_mend(recipe: Recipe, tmp_path: Path) -> None:
    before: Any = {"sample": Before(1.0, bytes_in=10**6), "train": Before(1.0, tokens_s=1.0)}
    config = NightlyConfig(max_hours=1, spare_gigabytes=0)
    with pytest.raises(RecipeError, match=r"time: about 11 h \d+ min .* nightly\.max_hours = 1;"):
        check_night(recipe, NEW, tmp_path, config, before, None)
    assert check_night(recipe, NEW, tmp_path, NightlyConfig(max_hours=12, spare_gigabytes=0), before, None).seconds
