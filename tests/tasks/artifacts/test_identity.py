"""Identities: canonical text, refusal of the unstable, and the first cause of a difference."""

import math
import shutil
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config import RUNTIME
from model.errors import Bug
from tasks.artifacts.identity import Identity, canonical_json, differences, first_difference, library_versions
from tasks.clean.stage import CLEAN
from tasks.common.code_fingerprint import Code
from tasks.common.config import StrictConfig
from tasks.evaluate.stage import EVALUATE
from tasks.sample.stage import SAMPLE

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


ROOTS, SIGN = ("tasks.dedup.stage:build",), "tasks.dedup.minhash:sign"
IDENTITY = Identity(
    stage="dedup",
    code=Code("1", ROOTS, {SIGN: "aa"}),
    params={"bands": 16},
    parents={"documents": "cc"},
    libs={"numba": "0.68.1"},
)


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"stage": "clean"}, 'stage: "dedup" -> "clean"'),
        ({"code": Code("2", ROOTS, {SIGN: "ab"})}, "code: tasks.dedup.minhash.sign was edited"),
        ({"code": Code("2", ROOTS, {SIGN: "aa", "tasks.dedup.lsh:key": "x"})}, "code: tasks.dedup.lsh.key is new"),
        ({"code": Code("2", ROOTS, {})}, "code: tasks.dedup.minhash.sign was removed"),
        ({"code": Code("2", ("a:b",), {SIGN: "aa"})}, "code: it begins at tasks.dedup.stage:build -> a:b"),
        ({"params": {"bands": 14}}, "params.bands: 16 -> 14"),
        ({"parents": {"documents": "cd"}}, "the input `documents` has other content (cc -> cd)"),
        ({"libs": {"numba": "0.69.0"}}, 'libs.numba: "0.68.1" -> "0.69.0"'),
        ({"libs": {}}, "libs.numba was removed"),
    ],
)
def test_each_part_of_an_identity_changes_the_key_and_is_named(changed: dict[str, Any], cause: str) -> None:
    other = replace(IDENTITY, **changed)
    assert other.key != IDENTITY.key
    assert first_difference(IDENTITY.parts(), other.parts()) == cause


def test_code_that_moved_is_the_same_code() -> None:
    moved = replace(IDENTITY, code=Code("1", ROOTS, {"tasks.dedup.signing:sign": "ac"}))
    assert moved.key == IDENTITY.key
    assert not list(differences(IDENTITY.parts(), moved.parts()))


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


def test_what_decides_is_identified_by_version() -> None:
    reported = library_versions(["pyarrow", "python", "unicode"], {})
    assert reported == {
        "pyarrow": pa.__version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "unicode": unicodedata.unidata_version,
    }


def test_a_variable_that_a_library_reads_counts_where_the_library_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_USER_SIMD_LEVEL", "NONE")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert library_versions(["pyarrow"]) == {"pyarrow": pa.__version__, "environment": "ARROW_USER_SIMD_LEVEL=NONE"}
    assert library_versions(["pyarrow"], {}) == {"pyarrow": pa.__version__}


def test_the_version_of_python_decides_sums_and_counts_where_they_are_made() -> None:
    """By what interpreters of other versions say, where there are any, of the shares of ten equal sources."""
    weigh = "import sys; weights = [0.1] * 10; print(*sys.version_info[:2], repr(weights[0] / sum(weights)))"
    shares: dict[bool, set[str]] = {False: set(), True: set()}
    for interpreter in _interpreters():
        major, minor, share = subprocess.check_output([interpreter, "-I", "-c", weigh], text=True).split()
        shares[(int(major), int(minor)) >= (3, 12)].add(share)
    assert shares[False] <= {"0.10000000000000002"}
    assert shares[True] <= {"0.1"}
    for stage in (SAMPLE, CLEAN, EVALUATE):
        assert "python" in stage.libraries, f"{stage.name} adds up floats in Python"


def _interpreters() -> list[Path]:
    """This one, and those beside it and on the path."""
    beside = Path(sys.base_prefix).parent.glob("*/bin/python3")
    named = [shutil.which(f"python3.{minor}") for minor in range(11, 16)]
    found = [Path(sys.executable), *beside, *(Path(path) for path in named if path)]
    return [path for path in dict.fromkeys(found) if _starts(path)]


def _starts(interpreter: Path) -> bool:
    done = subprocess.run([interpreter, "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False)
    return done.returncode == 0
