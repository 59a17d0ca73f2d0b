"""A worker refuses to make other bytes than the driver would, and a part that kills workers is recognised."""

import json
import operator
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.errors import InputError
from tasks.artifacts.build import Stage, stage_identity
from tasks.artifacts.identity import canonical_json
from tasks.common.config import StrictConfig
from tasks.execution.dask_worker import MOST_LOSSES, Job, PoisonedPart, count_losses, run_part

STAGE = Stage("pour", roots=("tasks.artifacts.tables.ledger",), libraries=("pyarrow",))


def job_in(folder: Path, function: Any = operator.mul, **changed: dict[str, Any]) -> Job:
    """A job of a build in `folder`; `changed` are parts of its identity that the driver has otherwise."""
    parts = stage_identity(STAGE, StrictConfig(), {}, {}).parts()
    for part, values in changed.items():
        parts[part] = {**parts[part], **values}
    identity = canonical_json(parts)
    file = folder / "identity.json"
    file.write_text(identity)
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    return Job.of(STAGE.name, function, file, identity, marks)


def test_the_same_versions_work(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    assert run_part(job, 3, (5,)) == 15
    assert count_losses(job.marks, 3) == 0


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        (
            {"code": {"digest": "0", "definitions": {"tasks.artifacts.tables.ledger:*": "0"}}},
            r"code: tasks\.artifacts\.tables\.ledger\.\* was edited",
        ),
        ({"code": {"digest": "0", "roots": ["tasks.gone:f"]}}, "the root `tasks.gone:f` is no definition"),
        ({"libs": {"pyarrow": "1.0"}}, r'libs\.pyarrow: "1\.0" ->'),
        ({"libs": {"python": "3.99"}}, r'libs\.python: "3\.99" ->'),
    ],
)
def test_other_versions_are_refused_before_anything_is_read(tmp_path: Path, changed: Any, reported: str) -> None:
    job = job_in(tmp_path, **changed)
    with pytest.raises(InputError, match=reported):
        run_part(replace(job, packed=b"nothing that could be opened"), 0, (1,))


def test_code_that_was_edited_after_the_worker_had_started_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path)
    job = replace(job, identity=json.dumps(json.loads(job.identity), indent=1))
    monkeypatch.setattr("psutil.Process.create_time", lambda self: 0.0)
    with pytest.raises(InputError, match=r"was edited after the worker had started.*restart the worker"):
        run_part(job, 0, (1,))


def test_a_root_that_is_not_shared_is_reported(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job.identity_file.unlink()
    with pytest.raises(InputError, match=r"does not see .* under the same path"):
        run_part(job, 0, (1,))


def test_a_part_at_which_two_workers_died_kills_no_third(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    for number in range(MOST_LOSSES):
        assert run_part(job, 7, (1,)) == 7
        (job.marks / f"7.dead{number}").touch()
    with pytest.raises(PoisonedPart):
        run_part(job, 7, (1,))
    assert run_part(job, 70, (1,)) == 70


def test_an_error_of_the_work_is_no_death(tmp_path: Path) -> None:
    job = job_in(tmp_path, operator.floordiv)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            run_part(job, 0, (0,))
    assert count_losses(job.marks, 0) == 0


def test_a_job_travels_unopened(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    assert job.function is operator.mul
    assert vars(pickle.loads(pickle.dumps(job))).keys() == {"stage", "packed", "identity_file", "identity", "marks"}
