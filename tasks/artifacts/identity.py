"""The identity of a build: its parts, their digest, and the differences between two identities.

identity = BLAKE3-128 of canonical JSON {format, stage, code, params, parents, libs}. The parts are stored in the
manifest, so that every cache miss can name its first cause. Of the code one digest counts; the manifest also lists the
definitions behind it with digests of their own, which only show people what was edited. The commit (`git_state`) is
recorded next to the identity and does not count.
"""

import functools
import json
import math
import os
import platform
import subprocess
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

from model.digests import digest_bytes
from model.environment import deciding_variables
from model.errors import Bug
from tasks.common.code_fingerprint import Code, CodeEntry

FORMAT = 3
"""Format of artifacts, whose tables are in `tasks.artifacts.tables.schema`; part of every identity and manifest."""

PYTHON = "python"

UNICODE = "unicode"

ENVIRONMENT = "environment"


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no whitespace. Raises Bug for values without a stable text (sets, NaN,
    objects)."""
    _refuse_unstable(value, "$")
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def _refuse_unstable(value: Any, path: str) -> None:
    if value is None or isinstance(value, bool | int | str):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Bug(f"identity: {path} is {value}, which has no stable meaning in an identity")
        return
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_unstable(item, f"{path}[{index}]")
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise Bug(f"identity: {path} has the key {key!r}; only text keys have a stable order")
            _refuse_unstable(item, f"{path}.{key}")
        return
    raise Bug(f"identity: {path} is a {type(value).__name__}; make it text, a number, a list or a mapping")


class IdentityParts(TypedDict):
    """An identity as a manifest stores it; `code` counts by its digest alone."""

    format: int
    stage: str
    code: CodeEntry
    params: dict[str, Any]
    parents: dict[str, str]
    libs: dict[str, str]


@dataclass(frozen=True)
class Identity:
    """The parts of an identity; `key` is the 32-digit digest that names the artifact's folder."""

    stage: str
    code: Code
    params: Mapping[str, Any]
    parents: Mapping[str, str]
    libs: Mapping[str, str]

    def parts(self) -> IdentityParts:
        """Return the identity as plain JSON values."""
        return {
            "format": FORMAT,
            "stage": self.stage,
            "code": self.code.to_json(),
            "params": dict(self.params),
            PARENTS: dict(self.parents),
            "libs": dict(self.libs),
        }

    @functools.cached_property
    def key(self) -> str:
        """BLAKE3-128 of the canonical text, 32 hexadecimal digits."""
        return identity_key(self.parts())


def identity_key(parts: Mapping[str, Any]) -> str:
    """Return the digest that names an artifact, from the parts in its manifest."""
    code = parts.get("code")
    counted = code.get("digest") if isinstance(code, Mapping) else code
    return digest_bytes(canonical_json({**parts, "code": counted}).encode())


OF_CODE = "code: "
"""Prefix of causes that are edits of the code."""

PARENTS = "parents"

_ORDER = ("format", "stage", PARENTS, "params", "code", "libs")


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return the first reason why two identities differ; None if they are equal.

    Inputs are compared first, then settings, code and libraries: an input that changed explains the rest.
    """
    return next(differences(old, new), None)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield every reason why two identities differ, in the order of `first_difference`."""
    for part in _ORDER:
        if part == "code":
            yield from _edits(old.get(part), new.get(part))
        else:
            yield from _differences(old.get(part), new.get(part), part)


def _edits(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the definitions in which the code of two identities differs; one that only moved does not differ."""
    if old is None or new is None or old["digest"] == new["digest"]:
        return
    before, now = old["definitions"], new["definitions"]
    edited = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    for name in edited:
        how = "is new" if name not in before else "was removed" if name not in now else "was edited"
        yield f"{OF_CODE}{name.replace(':', '.')} {how}"
    if not edited:
        yield f"{OF_CODE}it begins at {', '.join(old['roots'])} -> {', '.join(new['roots'])}"


def _differences(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        # A value that changed comes first: it may be why others are there or not.
        for key in sorted({*old, *new}, key=lambda key: (key not in old or key not in new, key)):
            name = f"the input `{key}`" if path == PARENTS else f"{path}.{key}"
            if key not in old:
                yield f"{name} is new"
            elif key not in new:
                yield f"{name} was removed"
            else:
                yield from _differences(old[key], new[key], f"{path}.{key}")
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{path}[{index}]")
    elif canonical_json(old) == canonical_json(new):
        return
    elif path.startswith(f"{PARENTS}."):
        yield f"the input `{path.removeprefix(f'{PARENTS}.')}` has other content ({old[:12]} -> {new[:12]})"
    else:
        yield f"{path}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = canonical_json(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def library_versions(names: Iterable[str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the installed versions of the libraries that decide a stage's result.

    `python` means the interpreter and `unicode` its Unicode database; names in `model.config.machine` mean parts of the
    machine that decide the last bits of floating-point sums, such as the vector instructions that the libraries choose
    in a process that starts with `environment`. None means this process: its environment variables that one of the
    libraries may have read then count by value."""
    from model.config import machine  # Loads pydantic, which lists of runs do without.

    names = tuple(names)
    versions: dict[str, str] = {}
    for name in names:
        if name == PYTHON:
            versions[name] = ".".join(platform.python_version_tuple()[:2])
        elif name == UNICODE:
            versions[name] = unicodedata.unidata_version
        elif name in machine.PARTS:
            versions[name] = machine.describe_part(name, os.environ if environment is None else environment)
        else:
            versions[name] = metadata.version(name)
    if environment is None and (found := deciding_variables(os.environ, names)):
        versions[ENVIRONMENT] = " ".join(f"{name}={value}" for name, value in found.items())
    return versions


class GitState(TypedDict):
    """The commit of the checkout and whether it was changed since; both None outside of one."""

    commit: str | None
    dirty: bool | None


@functools.cache
def git_state(project: Path) -> GitState:
    """Return `{"commit": ..., "dirty": ...}` of the project's checkout; both None outside of one."""
    commit = _git(project, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    status = _git(project, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit.strip(), "dirty": bool(status and status.strip())}


def _git(project: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(project), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
