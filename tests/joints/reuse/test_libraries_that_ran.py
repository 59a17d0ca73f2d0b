"""Every distribution that a stage's code imports, and every one whose code ran within it, decides the stage's identity
by version, or a reason is here why not."""

import ast
import importlib
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from model.config.machine import INSTRUCTION_SET
from tasks.artifacts.build import Stage
from tasks.artifacts.identity import UNICODE, Identity

PROJECT = Path(__file__).parents[3]
OURS = ("flows", "tasks", "model")
CANNOT_DECIDE = {
    "aiohttp": "carries files here, whose bytes count themselves",
    "blake3": "a digest function is what its standard says, whatever computes it",
    "cffi": "numba asks whether a value is one of its, and none is",
    "colorama": "colours what numba says",
    "dask": "hands parts out to machines, and computes nothing of them",
    "datasketch": "signs some documents again, to compare: a build fails or does not, and no byte comes from it",
    "distributed": "hands parts out to machines, and computes nothing of them",
    "fsspec": "carries files here, whose bytes count themselves",
    "psutil": "reads how much memory a machine has",
    "protobuf": "reads the vocabulary's file, whose bytes count themselves; vocab, which writes one, counts it",
    "pydantic": "checks settings, whose values count themselves",
    "pydantic_core": "checks settings, whose values count themselves",
    "typing_extensions": "types, which nothing computes with",
}
UNUSED = {
    ("train", "deepspeed"): "counts where the engine is asked for (tests/tasks/train/test_train_stage.py)",
    ("train", "tokenizers"): "comes with the tokenizer, whose pieces are counted and which encodes nothing here",
}
"""What a stage's code imports and no stage of this name runs."""
COMPUTED_BY = {
    "numba": ("llvmlite",),
    "torch": (INSTRUCTION_SET,),
    "trafilatura": ("justext", "lxml"),
}
"""What does a library's work, so that its version counts wherever the library's does."""
DISTRIBUTION_OF_A_HIDDEN_MODULE = {
    "_cffi_backend": "cffi",
    "_regex": "regex",
    "_sentencepiece": "sentencepiece",
    "sentencepiece_model_pb2": "sentencepiece",
}


def test_what_a_stage_imports_decides_by_version(
    alloy: Path, tmp_path: Path, identities: Callable[..., dict[str, Identity]], joint: Callable[..., Any]
) -> None:
    providers = metadata.packages_distributions()
    exempt: set[tuple[str, str]] = set()
    with joint("identity: libraries that the code imports") as tally:
        for stage, identity in identities(alloy / "alloy.toml", tmp_path).items():
            imported = set().union(*(_imported(module) for module in _modules(identity)))
            for package in sorted(imported):
                names = [name.lower() for name in providers.get(package, [package])]
                if any(name in CANNOT_DECIDE for name in names):
                    continue
                reasons = {(stage, name) for name in names} & UNUSED.keys()
                exempt |= reasons
                held = bool(reasons) or any(name in identity.libs for name in names)
                tally.expect(held, f"{stage} imports {package} of {', '.join(names)}; its version does not count")
                for other in (other for name in names if not reasons for other in COMPUTED_BY.get(name, ())):
                    tally.expect(other in identity.libs, f"{stage} imports {package}, and {other} does not count")
    assert exempt == UNUSED.keys(), "a reason that is no longer needed"


def _modules(identity: Identity) -> set[str]:
    """The modules in which the definitions are that an identity counts."""
    return {name.partition(":")[0] for name in identity.code.definitions if ":" in name}


def _imported(module: str) -> set[str]:
    """Top-level packages, but the standard library's and ours, that a module of a stage's code imports; `unicode` for
    the Unicode database."""
    base = PROJECT.joinpath(*module.split("."))
    path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    database = {UNICODE} if "unicodedata" in names else set()
    return {name for name in names if name not in sys.stdlib_module_names and name not in OURS} | database


@pytest.mark.joints
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


@pytest.mark.joints
def test_the_tracer_sees_python_and_compiled_packages(walked: Any) -> None:
    assert "torch" in walked.packages["train"]
    assert "torch" not in walked.packages["chunk"]
    assert "numba" in walked.packages["dedup"]
    assert "_regex" in walked.packages["clean"]
    assert "zstandard" in walked.packages["sample"]
