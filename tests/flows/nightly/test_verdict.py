"""What blocks a promotion: figures that are worse, not by chance, and by more than is allowed."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from flows.nightly.config import NightlyConfig
from flows.nightly.night import judge
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.build import RunContext, Stage, build_artifact
from tasks.artifacts.report import StageReport
from tasks.artifacts.tables.files import write_table
from tasks.artifacts.tables.schema import DOCUMENT_SCORES, ITEM_SCORES
from tasks.artifacts.workspace import Workspace
from tasks.common.config import StrictConfig

Evaluated = Callable[..., Artifact]


class Scores(StrictConfig):
    bits: Mapping[str, Sequence[float]] = {}
    right: Sequence[float] = ()


@pytest.fixture
def evaluated(tmp_path: Path) -> Evaluated:
    """An evaluation of documents of ten bytes each with so many bits, and of items that are right or wrong."""

    def make(*, right: Sequence[float] = (), **bits: Sequence[float]) -> Artifact:
        documents = [
            {"source": source, "doc_id": bytes([n] * 16), "piece": 0, "metric": "bits_per_byte", "bits": b, "bytes": 10}
            for source, values in bits.items()
            for n, b in enumerate(values)
        ]
        items = [
            {"task": "quiz", "item_id": str(n), "shots": 0, "state": "clean", "metric": "acc", "value": value}
            for n, value in enumerate(right)
        ]

        def run(workspace: Workspace) -> StageReport:
            with workspace.unit("00000") as unit:
                write_table(unit, "item_scores", pa.Table.from_pylist(items, schema=ITEM_SCORES))
                write_table(unit, "document_scores", pa.Table.from_pylist(documents, schema=DOCUMENT_SCORES))
            return StageReport()

        config = Scores(bits={name: list(values) for name, values in bits.items()}, right=list(right))
        return build_artifact(
            RunContext(tmp_path, "r"), Stage("evaluate", ("tasks.artifacts.tables.ledger",), ()), config, {}, run
        )

    return make


def test_a_model_that_is_no_worse_passes(evaluated: Evaluated) -> None:
    before = evaluated(notes=[20, 22, 24, 26], right=[1, 0, 1, 0])
    verdict = judge(evaluated(notes=[19, 23, 22, 27], right=[1, 1, 0, 0]), before, NightlyConfig())
    assert verdict.passed
    assert [one.what for one in verdict.figures] == ["notes: bits_per_byte", "quiz 0-shot: acc"]
    assert verdict.describe() == "no worse in 2 figures"


def test_a_model_that_is_worse_within_chance_is_described_as_worse(evaluated: Evaluated) -> None:
    before = evaluated(notes=[20, 22, 24, 26], right=[1, 0, 1, 0])
    verdict = judge(evaluated(notes=[90, 92, 94, 96], right=[1, 1, 0, 0]), before, NightlyConfig())
    assert verdict.passed
    assert verdict.describe() == "worse in 1 of 2 figures, in none beyond chance and what [nightly] allows"


def test_figures_that_cannot_block_are_named_with_what_they_need(evaluated: Evaluated) -> None:
    """Six documents that all got harder have a chance of one in 64, and of three figures each may have .05 / 3."""
    scored = evaluated(notes=[20] * 5, code=[30] * 6)
    warning = judge(scored, scored, NightlyConfig()).too_few()
    assert warning.startswith("1 of 3 figures cannot block a promotion by themselves")
    assert "notes: bits_per_byte has 5, and with so many figures 6 documents or items are needed" in warning
    assert judge(evaluated(notes=[90] * 5, code=[30] * 6), scored, NightlyConfig()).passed
    assert not judge(evaluated(notes=[20] * 5, code=[90] * 6), scored, NightlyConfig()).passed
    enough = evaluated(notes=[20] * 6, code=[30] * 6)
    assert judge(enough, enough, NightlyConfig()).too_few() == ""
    assert "a larger level is needed" in judge(scored, scored, NightlyConfig(level=1e-5)).too_few()


def test_one_source_that_is_surely_worse_blocks_whatever_the_others_gain(evaluated: Evaluated) -> None:
    before = evaluated(notes=[20, 22, 24, 26, 28, 20, 22], code=[30] * 7)
    verdict = judge(evaluated(notes=[30, 33, 34, 35, 39, 30, 32], code=[1] * 7), before, NightlyConfig())
    assert not verdict.passed
    assert [one.what for one in verdict.worse] == ["notes: bits_per_byte"]
    # All seven documents rise: one of 128 ways to sign them, and of three figures one may have .05 / 3.
    assert verdict.describe() == "significantly worse: notes: bits_per_byte 2.314 -> 3.329 (p 0.008)"
    assert [line["blocks"] for line in verdict.to_json()] == [False, False, True]


@pytest.mark.parametrize(("value", "written"), [(math.nan, "nan"), (math.inf, "inf")])
def test_a_model_whose_text_has_no_finite_bits_is_blocked(evaluated: Evaluated, value: float, written: str) -> None:
    """Of NaN nothing is larger, so that no difference would be significant."""
    before = evaluated(notes=[20, 22], code=[30] * 2)
    tables = {name: before.table(name) for name in ("item_scores", "document_scores")}
    bits = pa.array([20.0, value, 30.0, 30.0], pa.float64())
    column = tables["document_scores"].schema.get_field_index("bits")
    tables["document_scores"] = tables["document_scores"].set_column(column, "bits", bits)
    broken: Any = SimpleNamespace(table=tables.__getitem__)
    verdict = judge(broken, before, NightlyConfig(max_rise=1e9))
    assert not verdict.passed
    assert f"notes: bits_per_byte 2.100 -> {written} (not finite)" in verdict.describe()


def test_items_that_were_right_and_are_wrong_now_block(evaluated: Evaluated) -> None:
    before = evaluated(right=[1] * 12)
    assert not judge(evaluated(right=[0] * 6 + [1] * 6), before, NightlyConfig()).passed
    assert judge(evaluated(right=[0] * 4 + [1] * 8), before, NightlyConfig()).passed
    assert judge(evaluated(right=[0] * 6 + [1] * 6), before, NightlyConfig(max_fall=0.6)).passed


def test_a_rise_that_is_allowed_passes_and_few_documents_block_nothing(evaluated: Evaluated) -> None:
    before = evaluated(notes=[20, 22, 24, 26, 28])
    after = evaluated(notes=[21, 23, 25, 27, 29])
    assert not judge(after, before, NightlyConfig()).passed
    assert judge(after, before, NightlyConfig(max_rise=0.11)).passed
    assert judge(after, before, NightlyConfig(level=0.01)).passed
    assert judge(evaluated(notes=[90] * 4), evaluated(notes=[20] * 4), NightlyConfig()).passed


def test_models_without_anything_in_common_cannot_follow_each_other(evaluated: Evaluated) -> None:
    for after, before in (
        (evaluated(notes=[20, 21]), evaluated(code=[20, 21])),
        (evaluated(notes=[20, 21]), None),
    ):
        verdict = judge(after, before, NightlyConfig())
        assert (verdict.figures, verdict.passed) == ((), False)
        assert "promote it manually" in verdict.describe()
