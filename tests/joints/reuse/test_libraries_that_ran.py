"""Every distribution whose code ran within a stage decides its identity by version, or a reason stands here why not."""

import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest

from tasks.build import Stage

pytestmark = pytest.mark.joints

CANNOT_DECIDE = {
    "blake3": "a digest function is what its standard says, whatever computes it",
    "cffi": "numba asks whether a value is one of its, and none is",
    "colorama": "colours what numba says",
    "fsspec": "carries files here, whose bytes count themselves",
    "protobuf": "reads the vocabulary's file, whose bytes count themselves; vocab, which writes one, counts it",
    "pydantic": "checks settings, whose values count themselves",
    "pydantic_core": "checks settings, whose values count themselves",
    "typing_extensions": "types, which nothing computes with",
}
DISTRIBUTION_OF_A_HIDDEN_MODULE = {
    "_cffi_backend": "cffi",
    "_regex": "regex",
    "_sentencepiece": "sentencepiece",
    "sentencepiece_model_pb2": "sentencepiece",
}


def test_what_ran_decides_by_version_or_cannot_decide(walked: Any, joint: Callable[..., Any]) -> None:
    providers = metadata.packages_distributions()
    with joint("identity: libraries whose code ran") as tally:
        ran: set[str] = set()
        for stage, packages in sorted(walked.packages.items()):
            (declared,) = (
                value.libraries
                for value in vars(importlib.import_module(f"tasks.{stage}.stage")).values()
                if isinstance(value, Stage)
            )
            for package in sorted(packages):
                names = providers.get(package) or [DISTRIBUTION_OF_A_HIDDEN_MODULE.get(package, package)]
                ran.update(names)
                known = any(name in declared or name in CANNOT_DECIDE for name in names)
                tally.expect(known, f"{stage}: {package} of {', '.join(names)} ran; its version does not count")
        tally.note = f"{', '.join(sorted(ran - set(CANNOT_DECIDE)))}"


def test_the_tracer_sees_python_and_compiled_packages(walked: Any) -> None:
    assert "torch" in walked.packages["train"]
    assert "torch" not in walked.packages["chunk"]
    assert "numba" in walked.packages["dedup"]
    assert "_regex" in walked.packages["clean"]
    assert "zstandard" in walked.packages["sample"]
