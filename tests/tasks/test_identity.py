"""Identities: canonical text, refusal of the unstable, and the first cause of a difference."""

import math
from dataclasses import replace
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import Bug
from model.strict import RUNTIME
from tasks.config import StrictConfig
from tasks.identity import Identity, canonical_json, first_difference, library_versions

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_order_of_keys_does_not_matter() -> None:
    assert canonical_json({"b": 1, "a": [1, 2]}) == canonical_json({"a": [1, 2], "b": 1}) == '{"a":[1,2],"b":1}'


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", math.nan, math.inf, {1: "a"}, [lambda: 0]])
def test_values_without_a_stable_text_are_refused(value: Any) -> None:
    with pytest.raises(Bug, match=r"identity: \$"):
        canonical_json({"ok": 1, "here": value} if not isinstance(value, dict) else value)


@given(JSON, JSON)
def test_difference_is_found_exactly_when_there_is_one(old: Any, new: Any) -> None:
    left, right = {"params": {"x": old}}, {"params": {"x": new}}
    assert (first_difference(left, right) is None) == (canonical_json(old) == canonical_json(new))


IDENTITY = Identity(
    stage="dedup",
    code={"tasks.dedup.minhash": "aa"},
    params={"bands": 16},
    parents={"documents": "cc"},
    libs={"numba": "0.68.1"},
)


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"stage": "clean"}, 'stage: "dedup" -> "clean"'),
        ({"code": {"tasks.dedup.minhash": "ab"}}, "code.tasks.dedup.minhash was edited"),
        ({"code": {"tasks.dedup.minhash": "aa", "tasks.dedup.lsh": "x"}}, "code.tasks.dedup.lsh is new"),
        ({"params": {"bands": 14}}, "params.bands: 16 -> 14"),
        ({"parents": {"documents": "cd"}}, "the input `documents` has other content (cc -> cd)"),
        ({"libs": {"numba": "0.69.0"}}, 'libs.numba: "0.68.1" -> "0.69.0"'),
        ({"libs": {}}, "libs.numba is gone"),
    ],
)
def test_each_part_of_an_identity_changes_the_key_and_is_named(changed: dict[str, Any], cause: str) -> None:
    other = replace(IDENTITY, **changed)
    assert other.key != IDENTITY.key
    assert first_difference(IDENTITY.parts(), other.parts()) == cause


def test_inputs_are_named_before_settings() -> None:
    other = replace(IDENTITY, params={"bands": 14}, parents={"documents": "cd"})
    assert first_difference(IDENTITY.parts(), other.parts()) == "the input `documents` has other content (cc -> cd)"


class Inner(StrictConfig):
    path: Annotated[str, RUNTIME] = "/here"
    name: str = "books"


class Outer(StrictConfig):
    bands: int = 16
    workers: Annotated[int, RUNTIME] = 2
    sources: tuple[Inner, ...] = (Inner(),)


def test_runtime_fields_stay_out_of_the_identity_at_any_depth() -> None:
    assert Outer().identity_params() == {"bands": 16, "sources": [{"name": "books"}]}


def test_python_is_always_among_the_deciding_libraries() -> None:
    assert library_versions(["pyarrow"]).keys() == {"python", "pyarrow"}
