"""Compiled kernels: what is unchanged is loaded, a changed neighbour is never served stale, as numba alone would.

Real processes, real compilation, in a copy of the project. Each package is edited in one file. numba keeps compiled
code by the file that holds a function, and so serves kernels of other files as they were, also those that have the
edited code compiled into them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.stages import STAGES

pytestmark = pytest.mark.joints

EDITS = {
    "chunk": ("order.py", "np.uint64(0xBF58476D1CE4E5B9)", "np.uint64(0xBF58476D1CE4E5BB)"),
    "clean": (
        "kernels/characters.py",
        "    WHITESPACE,\n    LETTER,  # or",
        "    LETTER,\n    WHITESPACE,  # or",
    ),
    "dedup": ("minhash.py", "    value *= _MURMUR64_MIX2\n", "    value *= _MURMUR64_MIX1\n"),
    "common": ("legacy_encodings.py", "total += costs[data[index]]", "total += costs[data[index] ^ 128]"),
    "decontaminate": ("seeds.py", "np.uint64(0xA0761D6478BD642F)", "np.uint64(0xA0761D6478BD6431)"),
    "evaluate": ("ngram_baseline.py", "discounts[min(count, 3)]", "discounts[min(count, 2)]"),
    "tokenizer": ("bpe_kernel.py", "= rank_of[joined[index]]\n", "= -rank_of[joined[index]]\n"),
}
"""Package -> file, old text, new text: another order of rows, flags that change places, another mixing of hashes,
costs of other bytes, another base of hashes, another discount of frequent n-grams, the last merge first. Each gives
other bytes that are no less valid: of several errors, the worker that meets one first decides which is reported."""
BUILT_BY = {"common": "sample", "tokenizer": "chunk"}
"""Packages that are no stages -> a stage that runs their kernels."""
IN_ONE_FILE = {"common", "dedup", "evaluate"}
"""Packages in which no kernel that the recipe runs has code of another file compiled into it, so that numba alone
compiles anew whatever an edit reaches."""


def test_every_package_with_kernels_is_proved(checkout: Path) -> None:
    tasks = checkout / "tasks"
    packages = {path.relative_to(tasks).parts[0] for path in tasks.rglob("*.py") if "\n@kernel\n" in path.read_text()}
    assert packages == set(EDITS)


@pytest.mark.parametrize("package", EDITS)
def test_a_changed_neighbour_is_compiled_anew_and_an_unchanged_package_is_loaded(
    package: str,
    walked: Any,
    checkout: Path,
    run_program: Callable[..., str],
    joint: Callable[..., Any],
    tmp_path: Path,
) -> None:
    built_by = BUILT_BY.get(package, package)

    def build(label: str, kept_in: str, *how: str) -> dict[str, Any]:
        root = tmp_path / label
        (root / "artifacts").mkdir(parents=True)
        for stage in STAGES[: STAGES.index(built_by)]:
            (root / "artifacts" / stage).symlink_to(walked.root / "artifacts" / stage)
        kernels = {"NUMBA_CACHE_DIR": str(tmp_path / kept_in)}
        words = ("count_compilations.py", walked.recipe, root, built_by, package, *how)
        return json.loads(run_program(*words, project=checkout, environment=kernels))

    name, old, new = EDITS[package]
    path = checkout / "tasks" / package / name
    source = path.read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{path} no longer holds what is edited here"

    with joint(f"kernels: {package}") as tally:
        first = build("first", "ours")
        tally.expect(first["compiled"] and not first["loaded"], f"the first process compiles: {first}")
        again = build("again", "ours")
        tally.expect(again["loaded"] and not again["compiled"], f"the second process loads: {again}")
        tally.expect(again["content"] == first["content"], f"loaded kernels give the same bytes: {again}")
        by_numba = build("by-numba", "numba", "one-folder")
        tally.expect(by_numba["content"] == first["content"], f"kept by numba alone, the same bytes: {by_numba}")

        path.write_text(source.replace(old, new), encoding="utf-8")
        edited = build("edited", "ours")
        # A kernel that only loaded kernels call is part of their code: it is neither compiled nor loaded.
        known, anew, kept = (set(names) for names in (first["compiled"], edited["compiled"], edited["loaded"]))
        some_anew = anew and anew <= known and kept <= known and not anew & kept
        tally.expect(some_anew, f"after the edit of {name} what reaches it is compiled: {edited}")
        fresh = build("fresh", "nothing")
        tally.expect(fresh["content"] == edited["content"], f"compiled anew altogether, the same bytes: {fresh}")
        stale = build("stale", "numba", "one-folder")
        if package in IN_ONE_FILE:
            tally.expect(stale["content"] == edited["content"], f"numba alone compiles what was edited: {stale}")
        else:
            tally.expect(stale["loaded"], f"numba alone loads kernels compiled before the edit: {stale}")
            tally.expect(stale["content"] != edited["content"], f"numba alone would publish other bytes: {stale}")

        path.write_text(source, encoding="utf-8")
        back = build("back", "ours")
        tally.expect(not back["compiled"], f"with the edit undone the first compilation is loaded again: {back}")
        tally.expect(back["content"] == first["content"], f"and gives the first bytes: {back}")
        share = f"{len(anew)} of {len(known)} compiled anew, {len(kept)} loaded"
        wrong = "the same bytes" if package in IN_ONE_FILE else "stale, and wrong bytes"
        tally.note = f"{share}; numba alone: {len(stale['loaded'])} loaded, {wrong}"
