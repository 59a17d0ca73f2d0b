"""A nightly run without the stages: what is new, who may take it, the result where the pipeline gives nothing."""

import errno
import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.nightly.finish import fail
from flows.nightly.flow import nightly
from flows.nightly.history import Night, list_nights
from flows.nightly.night import Between, run_nightly, skip_nightly
from flows.nightly.recipe import RawRecipe, read_raw
from flows.nightly.start import exclusive_nightly, find_new_data, start_nightly
from flows.recipe.schema import Recipe
from model.checksummed_json import seal, unseal, write_sealed
from model.errors import BessemerError, GuardError, Infra, InputError, RecipeError


@pytest.fixture
def folder(foundry: Path, tmp_path: Path) -> Path:
    shutil.copytree(foundry, tmp_path / "inputs")
    return tmp_path / "inputs"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def raw_of(folder: Path, root: Path, *settings: str) -> RawRecipe:
    return read_raw(str(folder / "foundry.toml"), root, ["nightly.spare_gigabytes=0", *settings])


def road_that_fails(recipe: Recipe, root: Path, run_id: str, between: Between) -> dict[str, Any]:
    raise Infra("the disk is full")


def end_with(state: str, root: Path, folder: Path) -> Night:
    night = find_new_data(raw_of(folder, root)).night
    night.state = state
    night.save(root)
    return night


def test_on_the_first_night_all_is_new_and_then_only_what_came_since(folder: Path, root: Path) -> None:
    first = find_new_data(raw_of(folder, root))
    assert (first.base, len(first.night.files["notes"])) == (None, len(list((folder / "notes").iterdir())))
    assert first.recipe() == first.whole
    end_with("promoted", root, folder)
    assert find_new_data(raw_of(folder, root)).nothing_new
    (folder / "notes" / "note-00.txt").write_text("Other words than before.\n")
    (folder / "notes" / "new.txt").write_text("New words.\n")
    assert sorted(find_new_data(raw_of(folder, root)).night.files["notes"]) == ["new.txt", "note-00.txt"]


@pytest.mark.parametrize(
    ("later", "reported"),
    [
        ("{ train = 3 }", "train is 3, and must be a table"),
        ('{ "train.schedule" = 3 }', r"train\.schedule is 3, and must be a table"),
        ('{ "train.schedule.peek_lr" = 1e-3 }', r"train\.schedule\.peek_lr"),
        ('{ "train.schedule.peak_lr" = "high" }', r"train\.schedule\.peak_lr"),
        ('{ "dedup.against" = 3 }', r"dedup\.against"),
        ('{ "clean.quality.good" = 3 }', r"clean\.quality\.good"),
        ('{ "train.model.width" = 3 }', "width"),
    ],
)
def test_settings_of_later_nights_are_checked_on_the_first(folder: Path, root: Path, later: str, reported: str) -> None:
    with pytest.raises(RecipeError, match=rf"(?s)with nightly\.later.*{reported}"):
        find_new_data(raw_of(folder, root, f"nightly.later={later}"))


@pytest.mark.parametrize("begun", [b"", b" \n\n", "\ufeff\u3000\n".encode()])
def test_a_file_without_text_is_not_new_until_it_has_some(folder: Path, root: Path, begun: bytes) -> None:
    end_with("promoted", root, folder)
    (folder / "notes" / "begun.txt").write_bytes(begun)
    assert find_new_data(raw_of(folder, root)).nothing_new
    end_with("nothing new", root, folder)
    (folder / "notes" / "begun.txt").write_text("New words.\n")
    assert sorted(find_new_data(raw_of(folder, root)).night.files["notes"]) == ["begun.txt"]


def test_where_nothing_is_new_the_night_says_so_and_ends_well(folder: Path, root: Path) -> None:
    end_with("promoted", root, folder)
    words = ["nightly", str(folder / "foundry.toml"), "--root", str(root)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert "nothing new; no new data: every file was read by an earlier nightly run" in done.output.replace("\n", " ")
    assert not (root / "artifacts").exists()
    assert "nothing new" in CliRunner().invoke(app, ["nightly", "--list", "--root", str(root)]).output
    listed = json.loads(CliRunner().invoke(app, ["nightly", "--list", "--json", "--root", str(root)]).output)
    assert [night["state"] for night in listed["nights"]] == ["promoted", "nothing new"]


def test_a_night_that_fails_is_reported_and_its_files_wait_for_the_next(webhook: Any, folder: Path, root: Path) -> None:
    with webhook() as (address, heard):
        tonight = find_new_data(raw_of(folder, root, f"notify.webhook={address}"))
        with pytest.raises(Infra, match="the disk is full"):
            run_nightly(tonight, road_that_fails, None)
    (one,) = heard
    assert (one["json"]["event"], one["json"]["why"]) == ("failed", "Infra: the disk is full")
    (night,) = list_nights(root)
    assert (night.state, night.notified) == ("failed", ["webhook: sent"])
    assert find_new_data(raw_of(folder, root)).night.files == night.files


def test_a_night_that_lacks_something_does_not_begin(folder: Path, root: Path) -> None:
    tonight = find_new_data(raw_of(folder, root, "nightly.spare_gigabytes=1e9"))
    with pytest.raises(Infra, match="the nightly run did not start:\n  disk: "):
        run_nightly(tonight, road_that_fails, None)
    assert [night.state for night in list_nights(root)] == ["failed"]


def test_a_night_that_ended_without_a_word_is_reported_as_such(folder: Path, root: Path) -> None:
    end_with("under way", root, folder)
    with pytest.raises(Infra):
        run_nightly(find_new_data(raw_of(folder, root)), road_that_fails, None)
    reported = [(night.state, night.why) for night in list_nights(root)]
    assert reported[0] == (
        "interrupted",
        "it died; finished artifacts are kept, and the next nightly run takes its files",
    )
    assert reported[1][0] == "failed"


def test_two_nights_never_collide(folder: Path, root: Path) -> None:
    words = ["nightly", str(folder / "foundry.toml"), "--root", str(root)]
    with exclusive_nightly(root):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == Infra.exit_code
        assert "another nightly run is under way" in done.stderr
    end_with("promoted", root, folder)
    assert CliRunner().invoke(app, words).exit_code == 0


def test_a_night_that_went_down_with_its_machine_does_not_stop_the_next(root: Path) -> None:
    with exclusive_nightly(root):
        (lease,) = (root / "locks" / "nightly").glob("*.lease")
        left = lease.read_bytes()
    beat, _, record = left.partition(b"\n")
    holder = {**json.loads(unseal(record)), "boot": "an earlier start"}
    lease.write_bytes(beat + b"\n" + seal(holder))
    heard: list[str] = []
    with exclusive_nightly(root, heard.append, seconds=0.5):
        assert [sentence.partition(" was started by process ")[0] for sentence in heard] == ["a nightly run"]


def test_the_files_of_a_night_are_asked_for_by_its_name(folder: Path, root: Path) -> None:
    blocked = end_with("blocked", root, folder)
    assert find_new_data(raw_of(folder, root)).nothing_new
    assert find_new_data(raw_of(folder, root), (blocked.run_id[:12],)).night.files == blocked.files
    with pytest.raises(InputError, match="no nightly run has such an id"):
        find_new_data(raw_of(folder, root), ("nobody",))


def test_the_files_of_several_nights_are_asked_for_at_once(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command, and by the flow, whose form has one line for all of them."""
    nights = [end_with("blocked", root, folder) for _ in range(2)]
    words = ["nightly", str(folder / "foundry.toml"), "--root", str(root), "--again", "none", "--again"]
    done = CliRunner().invoke(app, [*words, nights[0].run_id])
    assert "nightly --again none: no nightly run has such an id" in " ".join(done.output.split())
    asked: list[list[str]] = []

    def start(recipe: str, root: Path, again: list[str], *others: Any) -> Any:
        asked.append(list(again))
        raise Infra("enough")

    monkeypatch.setattr("flows.nightly.flow.start_nightly", start)
    monkeypatch.setattr("flows.nightly.flow.end_of_flow", lambda work: work())
    monkeypatch.setattr("flows.nightly.flow.exit_when_run_ends", nullcontext)
    monkeypatch.setattr("flows.nightly.flow.get_run_logger", lambda: SimpleNamespace(info=None))
    with pytest.raises(Infra, match="enough"):
        nightly.fn("foundry.toml", root, " ".join(night.run_id for night in nights))
    assert asked == [[night.run_id for night in nights]]


def test_idle_nights_can_be_reported_too(webhook: Any, folder: Path, root: Path) -> None:
    end_with("promoted", root, folder)
    with webhook() as (address, heard):
        skip_nightly(find_new_data(raw_of(folder, root, f"notify.webhook={address}", 'notify.on=["nothing"]')))
    assert [one["json"]["event"] for one in heard] == ["nothing new"]


def test_a_source_that_cannot_be_found_is_reported_too(webhook: Any, folder: Path, root: Path) -> None:
    (folder / "notes").rename(folder / "gone")
    with webhook() as (address, heard), pytest.raises(InputError, match="does not exist"):
        find_new_data(raw_of(folder, root, f"notify.webhook={address}"))
    assert [one["json"]["event"] for one in heard] == ["failed"]
    assert [night.state for night in list_nights(root)] == ["failed"]


def test_a_night_that_was_stopped_is_no_failure(webhook: Any, folder: Path, root: Path) -> None:
    def road_that_is_stopped(recipe: Recipe, root: Path, run_id: str, between: Between) -> dict[str, Any]:
        raise KeyboardInterrupt

    with webhook() as (address, heard):
        with pytest.raises(KeyboardInterrupt):
            run_nightly(find_new_data(raw_of(folder, root, f"notify.webhook={address}")), road_that_is_stopped, None)
        assert heard == []
    assert [(night.state, night.why) for night in list_nights(root)] == [("interrupted", "it was stopped")]


def test_a_night_that_was_killed_behind_its_promotion_is_promoted(folder: Path, root: Path) -> None:
    killed = end_with("under way", root, folder)
    made = {"number": 1, "run_id": killed.run_id, "who": "", "when": "", "why": "by a proof", "replaced": None}
    (root / "promotions" / "000001").mkdir(parents=True)
    write_sealed(root / "promotions" / "000001" / "promotion.json", made)
    with pytest.raises(InputError, match="no run"):  # Its run has no record here; its result is tested before.
        find_new_data(raw_of(folder, root))
    first, _ = list_nights(root)
    assert (first.state, first.why) == ("promoted", "by a proof")


def test_a_training_that_paused_is_no_night(folder: Path, root: Path) -> None:
    def road_to_a_pause(recipe: Recipe, root: Path, run_id: str, between: Between) -> dict[str, Any]:
        return {"stages": [{"stage": "train", "outcome": "paused"}]}

    with pytest.raises(RecipeError, match=r"Leave train\.pause_share out"):
        run_nightly(find_new_data(raw_of(folder, root)), road_to_a_pause, None)
    assert [night.state for night in list_nights(root)] == ["failed"]


def test_people_are_notified_where_the_end_of_a_night_cannot_be_written(
    webhook: Any, folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Night.save

    def save(night: Night, root: Path) -> None:
        if night.state == "failed":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(night, root)

    with webhook() as (address, heard):
        tonight = find_new_data(raw_of(folder, root, f"notify.webhook={address}"))
        monkeypatch.setattr(Night, "save", save)
        with pytest.raises(Infra, match="the disk is full") as caught:
            run_nightly(tonight, road_that_fails, None)
    assert "No space left on device" in heard[0]["json"]["text"]
    assert "could not be written" in caught.value.__notes__[0]
    assert [night.state for night in list_nights(root)] == ["under way"]


def test_what_comes_behind_a_promotion_takes_nothing_of_it(webhook: Any, folder: Path, root: Path) -> None:
    made = {"number": 1, "who": "", "when": "", "why": "", "replaced": None}

    def road_that_promotes(recipe: Recipe, root: Path, run_id: str, between: Between) -> dict[str, Any]:
        (root / "promotions" / "000001").mkdir(parents=True)
        write_sealed(root / "promotions" / "000001" / "promotion.json", {**made, "run_id": run_id})
        raise ends

    with webhook() as (address, heard):
        raw = raw_of(folder, root, f"notify.webhook={address}")
        ends: BaseException = Infra("the link cannot be made")
        with pytest.raises(Infra, match="the link"):
            run_nightly(find_new_data(raw), road_that_promotes, None)
        assert [one["json"]["event"] for one in heard] == ["promoted"]
    (night,) = list_nights(root)
    assert (night.state, night.why) == ("promoted", "promoted, and failed afterwards: Infra: the link cannot be made")
    shutil.rmtree(root)
    root.mkdir()
    ends = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_nightly(find_new_data(raw_of(folder, root)), road_that_promotes, None)
    assert [night.state for night in list_nights(root)] == ["promoted"]


def test_a_night_whose_end_was_written_stays_as_it_ended(folder: Path, root: Path) -> None:
    tonight = find_new_data(raw_of(folder, root))
    skip_nightly(tonight)
    fail(tonight.raw, tonight.night, Infra("a server that answers nonsense"))
    assert [night.state for night in list_nights(root)] == ["nothing new"]


def test_a_night_that_cannot_begin_is_reported_by_the_addresses_that_can_be_read(
    webhook: Any, folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = folder / "foundry.toml"
    text = recipe.read_text()

    def crashed_too_often() -> None:
        raise GuardError("the last 4 runs crashed")

    def reported(match: str, root: Path = root, settings: tuple[str, ...] = (), **more: Any) -> str:
        heard.clear()
        with pytest.raises(BessemerError, match=match), start_nightly(str(recipe), root, settings=settings, **more):
            raise AssertionError("a night began")
        (one,) = heard
        assert one["json"]["event"] == "failed"
        return one["json"]["why"]

    with webhook() as (address, heard):
        notify = f'\n[notify]\nwebhook = "{address}"\n'
        recipe.write_text(f"{text}{notify}[nightly]\nmax_hours = -1\n")
        assert "nightly.max_hours" in reported("max_hours")
        recipe.write_text(text + notify)
        assert reported("crashed", check=crashed_too_often) == "GuardError: the last 4 runs crashed"
        (root / "file").write_text("in the way")
        assert "is a file" in reported("is a file; choose a folder of yours with --root", root / "file")
        monkeypatch.setenv("BESSEMER_WEBHOOK", address)
        assert "notify.mail_server" in reported("mail_server", settings=("notify.mail_server=nowhere",))
        recipe.write_text("no recipe")
        assert "not valid TOML" in reported("not valid TOML")
        recipe.unlink()
        caplog.clear()
        assert "there is no such file" in reported("no such file")
        assert caplog.messages[0] == "whom to notify cannot be read: the error below"
    assert list_nights(root) == []


def test_that_another_night_is_under_way_is_reported_to_nobody(webhook: Any, folder: Path, root: Path) -> None:
    with webhook() as (address, heard), exclusive_nightly(root):
        settings = (f"notify.webhook={address}",)
        with (
            pytest.raises(Infra, match="another nightly run"),
            start_nightly(str(folder / "foundry.toml"), root, settings=settings),
        ):
            raise AssertionError("a night began")
        assert heard == []


def test_a_night_that_was_killed_is_reported_by_the_next(webhook: Any, folder: Path, root: Path) -> None:
    end_with("under way", root, folder)
    with webhook() as (address, heard):
        find_new_data(raw_of(folder, root, f"notify.webhook={address}"))
        find_new_data(raw_of(folder, root, f"notify.webhook={address}"))
    (one,) = heard
    assert one["json"]["event"] == "interrupted"
    assert "it died" in one["json"]["why"]
