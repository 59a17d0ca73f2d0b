"""Building an artifact once: reuse, early cut-off, resume after kill -9, races, damage, and a forced rebuild."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from model.digests import digest_bytes, digest_file
from model.errors import Infra, InputError, IntegrityError
from model.file_content import ChangedInput, read_content
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import ProgressListener, RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import table_file_name, write_table
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig
from tasks.common.digests import InputDigests, forget_changed_inputs

SHOUT = Stage("shout", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))


class ShoutConfig(StrictConfig):
    words: tuple[str, ...] = ("iron", "coke", "blast")
    loud: bool = True


def shout(config: ShoutConfig, workspace: Workspace, pause: float = 0.0, calls: list[str] | None = None) -> StageReport:
    """One unit a word, upper-cased where loud."""
    reports: list[StageReport] = []
    for number, word in enumerate(config.words):
        name = f"{number:05d}"
        done = workspace.finished(name)
        if done is None:
            time.sleep(pause)
            if calls is not None:
                calls.append(word)
            with workspace.unit(name) as unit:
                text = word.upper() if config.loud else word
                write_table(unit, "documents", pa.table({"text": [text]}), table_file_name("documents", name))
                unit.report.source("words").documents_in = unit.report.source("words").documents_out = 1
                done = unit.report
        reports.append(done)
    return StageReport.merged(reports)


def build(root: Path, config: ShoutConfig | None = None, calls: list[str] | None = None, **context: object) -> Artifact:
    config = config or ShoutConfig()
    run = RunContext(root, "run", **context)  # pyright: ignore[reportArgumentType]
    return build_artifact(run, SHOUT, config, {}, lambda workspace: shout(config, workspace, calls=calls))


def test_a_second_build_of_the_same_identity_is_reused_and_runs_nothing(tmp_path: Path) -> None:
    calls: list[str] = []
    first, second = build(tmp_path, calls=calls), build(tmp_path, calls=calls)
    assert calls == ["iron", "coke", "blast"]
    assert (first.reused, second.reused) == (False, True)
    assert first.content == second.content
    assert first.table("documents").column("text").to_pylist() == ["IRON", "COKE", "BLAST"]
    assert not (tmp_path / "work" / first.identity).exists()


def test_a_cause_is_found_by_what_was_made_from_the_same_inputs(tmp_path: Path) -> None:
    """Of two artifacts, one has two other settings, and one another input alone, as that of another recipe."""
    mine, others = build(tmp_path), build(tmp_path, ShoutConfig(words=("ore", "ash", "tar")))

    def child(parent: Artifact, config: ShoutConfig) -> Artifact:
        stage = Stage("child", SHOUT.roots, SHOUT.libraries)
        run = RunContext(tmp_path, "run")
        return build_artifact(run, stage, config, {"documents": parent}, lambda workspace: shout(config, workspace))

    asked = ShoutConfig(words=("slag", "iron", "coke"), loud=False)
    child(mine, ShoutConfig())
    child(others, asked)
    assert child(mine, asked).cause == "params.loud: true -> false"


def test_another_setting_is_another_identity_and_its_cause_is_reported(tmp_path: Path) -> None:
    heard: list[str] = []

    class Listener(ProgressListener):
        def note(self, stage: str, sentence: str) -> None:
            heard.append(sentence)

        def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
            heard.append(f"{artifact.outcome} {artifact.cause}")

    loud = build(tmp_path, listener=Listener())
    soft = build(tmp_path, ShoutConfig(loud=False), listener=Listener())
    assert loud.identity != soft.identity
    cause = "params.loud: true -> false"
    assert heard == [
        f"building {loud.identity[:12]}",
        "built no artifact of this stage exists yet",
        f"building {soft.identity[:12]}: {cause}",
        f"built {cause}",
    ]


def test_a_parent_counts_by_content_so_an_equal_rebuild_stops_the_wave(tmp_path: Path) -> None:
    parent = build(tmp_path)
    twin = replace(parent, identity="another", path=tmp_path / "elsewhere")
    context = RunContext(tmp_path, "run")

    def child(documents: Artifact) -> Artifact:
        config = ShoutConfig(words=("slag", "ash", "dust"))
        return build_artifact(context, SHOUT, config, {"documents": documents}, lambda w: shout(config, w))

    assert not child(parent).reused
    assert child(twin).reused
    assert not child(replace(parent, content="0" * 32)).reused


def test_external_files_count_by_their_digest(tmp_path: Path) -> None:
    config, context = ShoutConfig(), RunContext(tmp_path, "run")

    def with_input(digest: str) -> Artifact:
        return build_artifact(context, SHOUT, config, {}, lambda w: shout(config, w), {"source/books": digest})

    assert [with_input(digest).reused for digest in ("a", "a", "b")] == [False, True, False]


def test_a_failure_publishes_nothing_and_the_next_build_goes_on_from_finished_units(tmp_path: Path) -> None:
    config, calls = ShoutConfig(), []

    def fails_late(workspace: Workspace) -> StageReport:
        shout(config.model_copy(update={"words": config.words[:2]}), workspace, pause=0.1, calls=calls)
        raise OSError(28, "No space left on device", "/somewhere")

    with pytest.raises(Infra, match="no space left while writing /somewhere"):
        build_artifact(RunContext(tmp_path, "run"), SHOUT, config, {}, fails_late)
    assert not (tmp_path / "artifacts").exists()
    assert calls == ["iron", "coke"]
    resumed = build(tmp_path, calls=calls)
    assert calls == ["iron", "coke", "blast"]
    assert resumed.content == build(tmp_path / "undisturbed").content
    assert resumed.manifest["timings"]["seconds"] >= 0.2, "the pauses of the build that failed"


def test_a_finished_unit_that_was_damaged_is_done_again(tmp_path: Path) -> None:
    config, calls = ShoutConfig(), []

    def fails(workspace: Workspace) -> StageReport:
        shout(config, workspace, calls=calls)
        raise Infra("lost")

    with pytest.raises(Infra):
        build_artifact(RunContext(tmp_path, "run"), SHOUT, config, {}, fails)
    (part,) = tmp_path.glob("work/*/files/part-00001.arrow")
    part.write_bytes(part.read_bytes()[:-1])
    assert build(tmp_path, calls=calls).content == build(tmp_path / "undisturbed").content
    assert calls == ["iron", "coke", "blast", "coke"]


def test_a_stage_outside_the_stretch_must_exist_already(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="may only build train"):
        build(tmp_path, buildable=frozenset({"train"}))
    build(tmp_path)
    assert build(tmp_path, buildable=frozenset({"train"})).reused


def test_a_forced_rebuild_that_agrees_is_reproduced(tmp_path: Path) -> None:
    outcomes: list[str] = []

    class Listener(ProgressListener):
        def finished(self, stage: str, artifact: Artifact, seconds: float) -> None:
            outcomes.append(artifact.outcome)

    build(tmp_path)
    build(tmp_path, forced=frozenset({"shout"}), listener=Listener())
    assert outcomes == ["reproduced"]
    assert not list((tmp_path / "work").iterdir())


def test_a_forced_rebuild_that_was_interrupted_continues_though_another_artifact_was_built(tmp_path: Path) -> None:
    build(tmp_path)
    calls: list[str] = []
    forced = RunContext(tmp_path, "run", forced=frozenset({"shout"}))

    def interrupted(workspace: Workspace) -> StageReport:
        shout(ShoutConfig(words=("iron", "coke")), workspace, calls=calls)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_artifact(forced, SHOUT, ShoutConfig(), {}, interrupted)
    build(tmp_path, ShoutConfig(loud=False))
    build(tmp_path, calls=calls, forced=frozenset({"shout"}))
    assert calls == ["iron", "coke", "blast"]
    assert list((tmp_path / "work").iterdir()) == []


def test_a_forced_rebuild_that_differs_is_an_error_and_both_stay(tmp_path: Path) -> None:
    config = ShoutConfig()
    first = build(tmp_path)
    moody = config.model_copy(update={"words": ("iron", "coke", "tin")})
    with pytest.raises(IntegrityError, match=r"first difference: part-00002\.arrow"):
        build_artifact(
            RunContext(tmp_path, "run", forced=frozenset({"shout"})), SHOUT, config, {}, lambda w: shout(moody, w)
        )
    assert len(list((tmp_path / "artifacts" / "shout").iterdir())) == 2
    assert build(tmp_path).content == first.content


def test_a_flipped_byte_is_found_named_and_never_read(tmp_path: Path) -> None:
    artifact = build(tmp_path)
    path = artifact.path / "part-00001.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert artifact.verify() == ["part-00001.arrow"]
    with pytest.raises(IntegrityError, match=r"part-00001\.arrow of .* should have the digest"):
        artifact.table("documents")


def test_a_folder_without_a_manifest_is_no_artifact(tmp_path: Path) -> None:
    artifact = build(tmp_path)
    (artifact.path / "manifest.json").unlink()
    with pytest.raises(IntegrityError, match="not a finished artifact"):
        Artifact.open(artifact.path)


def test_manifest_states_identity_parts_parents_rows_and_provenance(tmp_path: Path) -> None:
    manifest = build(tmp_path).manifest
    assert manifest["rows"] == {"documents": 3}
    assert manifest["identity_parts"]["params"] == {"words": ["iron", "coke", "blast"], "loud": True}
    assert manifest["report"]["sources"]["words"]["documents_out"] == 3
    assert {"commit", "dirty"} == manifest["git"].keys()


def test_racing_builders_give_one_build_and_all_reuse_it(tmp_path: Path) -> None:
    calls: list[str] = []
    results: list[Artifact] = []
    threads = [threading.Thread(target=lambda: results.append(build(tmp_path, calls=calls))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["iron", "coke", "blast"]
    assert sorted(result.reused for result in results) == [False] + [True] * 7


BUILDER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_build import RunContext, SHOUT, ShoutConfig, build_artifact, shout
config = ShoutConfig(words=tuple(f"word{{i}}" for i in range(12)))
build_artifact(RunContext(Path({root!r}), "run"), SHOUT, config, {{}}, lambda w: shout(config, w, pause=0.02))
"""


def test_kill_9_at_many_moments_then_the_same_bytes(tmp_path: Path) -> None:
    """A dead builder's lock is free at once, no partial artifact is ever seen, and finished units are kept."""
    config = ShoutConfig(words=tuple(f"word{i}" for i in range(12)))
    undisturbed = build(tmp_path / "undisturbed", config).content
    root = tmp_path / "disturbed"
    script = BUILDER.format(tests=str(Path(__file__).parent), root=str(root))
    kills = 0
    for attempt in range(20):
        process = subprocess.Popen([sys.executable, "-c", script])
        units = len(list(root.glob("work/*/units/*.json")))
        deadline = time.monotonic() + 20
        while process.poll() is None and len(list(root.glob("work/*/units/*.json"))) < units + 2:
            assert time.monotonic() < deadline
            time.sleep(0.002 * (attempt % 3 + 1))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        for manifest in root.glob("artifacts/*/*/manifest.json"):
            assert json.loads(manifest.read_text())["content"] == undisturbed
    assert kills >= 3
    artifact = build(root, config)
    assert artifact.content == undisturbed
    assert artifact.verify() == []


def test_an_unchanged_input_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "input.txt"
    path.write_bytes(b"pig iron")
    monkeypatch.setattr("tasks.common.digests.SETTLING_SECONDS", -60)
    inputs = InputDigests(tmp_path / "inputs.json")
    assert inputs.digest(path) == digest_bytes(b"pig iron")
    inputs.save()
    again = InputDigests(tmp_path / "inputs.json")
    monkeypatch.setattr("tasks.common.digests.open_file", lambda path: pytest.fail("read an unchanged file"))
    assert again.digest(path) == digest_bytes(b"pig iron")


def test_an_input_changed_within_two_seconds_of_hashing_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_bytes(b"pig iron")
    inputs = InputDigests(tmp_path / "inputs.json")
    inputs.digest(path)
    status = path.stat()
    path.write_bytes(b"cast tin")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert inputs.digest(path) == digest_bytes(b"cast tin")


def test_files_that_are_gone_leave_neither_name_nor_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.common.digests.SETTLING_SECONDS", -60)
    inputs, paths = InputDigests(tmp_path / "inputs.json"), [tmp_path / "stays.txt", tmp_path / "leaves.txt"]
    for path in paths:
        path.write_bytes(b"pig iron")
        inputs.digest(path)
    inputs.save()
    paths[1].unlink()
    again = InputDigests(tmp_path / "inputs.json")
    again.forget_missing()
    again.save()
    known = (tmp_path / "inputs.json").read_text()
    assert "stays.txt" in known
    assert "leaves.txt" not in known


def test_an_old_mtime_does_not_settle_a_file_that_was_just_written(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_bytes(b"pig iron")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    inputs = InputDigests(tmp_path / "inputs.json")
    inputs.digest(path)
    inputs.save()
    assert not (tmp_path / "inputs.json").exists(), "its ctime is of this moment, whose tick may hide a later write"


def test_a_file_that_is_replaced_between_the_look_and_the_opening_is_not_known_by_the_times_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.common.digests.SETTLING_SECONDS", -60)
    path, old, new = tmp_path / "input.txt", tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"pig iron")
    new.write_bytes(b"cast tin")
    os.link(old, path)
    opens = os.open

    def replaced(place: os.PathLike[str] | str, *rest: int, **more: int) -> int:
        if os.fspath(place) == os.fspath(path):
            path.unlink()
            os.link(new, path)
        return opens(place, *rest, **more)

    inputs = InputDigests(tmp_path / "inputs.json")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", replaced)
        assert inputs.digest(path) == digest_bytes(b"cast tin")
    path.unlink()
    os.link(old, path)
    assert inputs.digest(path) == digest_bytes(b"pig iron")


def test_what_a_cache_of_wrong_times_hides_is_an_error_once_and_then_another_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program that writes through a mapping, which changes no time."""
    monkeypatch.setattr("tasks.common.digests.SETTLING_SECONDS", -60)
    monkeypatch.setattr("tasks.common.digests._mark", lambda status: [status.st_size])
    path = tmp_path / "input.txt"
    path.write_bytes(b"pig iron")
    inputs = InputDigests(tmp_path / "inputs.json")
    content = inputs.content(path)
    inputs.save()
    path.write_bytes(b"cast tin")
    assert InputDigests(tmp_path / "inputs.json").content(path) == content
    with pytest.raises(ChangedInput, match=r"input\.txt was changed"), forget_changed_inputs(tmp_path / "inputs.json"):
        read_content(path, content)
    assert InputDigests(tmp_path / "inputs.json").digest(path) == digest_bytes(b"cast tin")


def test_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"slag" * 1000)
    assert digest_file(path) == digest_bytes(b"slag" * 1000)
