"""Every field of every stage's configuration, changed by itself: it counts, or it is marked as runtime and does not.

Another valid value comes from the field's type and bounds; where none does, it is in a table here, and a new field
of which neither is true fails the proof. What else an identity is made of (stage, format, parents, code, libraries) is
changed too. The ordinary tests try one other value of each field, `make prove-joints` every one.
"""

import importlib
import platform
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

import tasks.artifacts.identity
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from model.config import Runtime, machine
from model.config.network import BERTConfig, GPTConfig, T5Config
from tasks.artifacts.build import Stage, stage_identity
from tasks.artifacts.identity import FORMAT, Identity, first_difference
from tasks.common.code_fingerprint import Code
from tasks.common.config import StrictConfig
from tasks.execution.machines import Machines

SPREAD_STAGES = ("clean", "dedup", "decontaminate", "chunk")
OTHERS: dict[str, list[Any]] = {
    "clean.add": [("c4_curly_bracket", "c4_lorem_ipsum")],
    "clean.limits": [{"gopher_words_min": 30.0}],
    "clean.languages": [("it",)],
    "clean.without": [()],
    "clean.presets": [{"notes": "c4"}],
    "chunk.tombstones": [()],
    "chunk.tombstones.key": ["fedcba9876543210"],
    "clean.edits": [("nfc", "markup", "spelling"), ("markup", "nfc", "spelling")],
    "clean.rules": [("gopher_words_min", "c4_curly_bracket")],
    **{f"{stage}.machines.address": ["tcp://other:8786"] for stage in SPREAD_STAGES},
    "sample.exclude_documents": [("0123456789abcdef" * 2,)],
    "sample.sources.encoding": ["cp1251"],
    "train.environment": [("MKL_CBWR=AVX2",)],
    "train.hosts.address": ["other:29400"],
    "train.hosts.count": [4],
    "vocab.extend": [{"zh": 200}, {"ru": 100}],
}
"""Values that must name something that exists, which no type can give."""
ONE_VALUE = {
    "chunk.input_length": "it belongs to span_corruption, where row_length, which counts, follows from it",
    "train.deterministic": "false goes with CUDA devices, where it counts (tests/model/config/test_portable.py)",
    "train.model.architecture": "another one is another table of settings, each of which counts",
    "train.model.init": "`t_fixup` goes with `norm = none` and without warm-up, which count",
}
"""Fields that can have no other value yet, or none while all else stays."""


RUNTIME_FIELDS = {
    "chunk.allow_many_epochs": "decides whether `max_epochs`, which counts, may be so high",
    "chunk.workers": "test_same_bytes.py",
    "clean.classifiers.labels": "its bytes are an input",
    "clean.classifiers.path": "its bytes are an input",
    "clean.deny.path": "its entries are an input",
    "clean.extensions.path": "its functions are inputs",
    "clean.spelling.path": "its pairs are an input",
    "clean.word_lists.path": "its words are an input",
    "clean.wipe_out_limit": "ends a run, and changes no byte (tests/tasks/artifacts/test_limits.py)",
    "clean.wipe_out_overrides": "ends a run, and changes no byte (tests/tasks/artifacts/test_limits.py)",
    "clean.workers": "test_same_bytes.py",
    "decontaminate.benchmarks.answers_path": "its bytes are an input",
    "decontaminate.benchmarks.path": "its bytes are an input",
    "decontaminate.workers": "test_same_bytes.py",
    "dedup.against": "the artifacts that it names are parents",
    "dedup.memory_bytes": "test_same_bytes.py",
    "dedup.threads": "test_same_bytes.py",
    "dedup.wipe_out_limit": "ends a run, and changes no byte (tests/tasks/artifacts/test_limits.py)",
    "dedup.wipe_out_overrides": "ends a run, and changes no byte (tests/tasks/artifacts/test_limits.py)",
    "evaluate.earlier": "the artifacts that it names are parents",
    "evaluate.gate.max_rise": "ends a run behind its scores, and changes no byte (tests/tasks/evaluate/test_gate.py)",
    "evaluate.gate.base_model": "its digest is part of the trained model, and held against the folder",
    "sample.allow_many_epochs": "decides whether `max_epochs`, which counts, may be so high",
    "sample.max_reject_share": "ends a run, and changes no byte (tests/tasks/artifacts/test_limits.py)",
    "sample.normalise_weights": "decides whether weights, which count, may have another sum",
    "sample.workers": "test_same_bytes.py",
    "sample.sources.exclude": "the files that are left are inputs",
    "sample.sources.licence": "the card and the export name it; no text is another",
    "sample.sources.only": "the files that are left are inputs",
    "sample.sources.paths": "the files that it names are inputs",
    "train.base_model": "its description, which holds the digest of its weights, is an input",
    "train.checkpoint_steps": "test_same_bytes.py",
    "train.guard.most_rollbacks": "ends a run, and changes no byte (tests/tasks/artifacts/test_limits.py)",
    "train.hang_seconds": "decides when a trainer is given up, and no step",
    "train.keep_checkpoints": "test_same_bytes.py",
    "train.lasting_checkpoints": "the guard rolls back to none of them (tests/model/train/test_replay.py)",
    "train.pause_share": "a pause leaves no artifact, and the same bits behind it (tests/model/test_pause.py)",
    "train.hosts.address": "two hosts compute what one does (tests/model/launch/test_hosts.py)",
    "train.hosts.count": "two hosts compute what one does (tests/model/launch/test_hosts.py)",
    "train.hosts.silence_seconds": "decides when a machine is gone; a model that went on without it is not `exact`",
    "train.hosts.wait_seconds": "decides when others go on without a machine; their model is then not `exact`",
    "train.restarts.fewer_ranks": "ranks that were missing for a while make the model `exact = false`",
    "train.restarts.most": "decides when a trainer is given up, and no step",
    "train.restarts.pause_seconds": "decides when a trainer is started again, and no step",
    "train.start_seconds": "decides when a trainer is given up, and no step",
    "train.max_seconds": "decides when a trainer is given up, and no step",
    "train.stop_seconds": "decides when a trainer is given up, and no step",
    "vocab.base": "its bytes are an input",
    **{f"{stage}.keep": "what is kept is an input" for stage in ("sample", "clean", "decontaminate", "chunk")},
    "decontaminate.keep_heldout": "what is kept is an input",
    "vocab.keep": "the artifact that it names is used as it is",
    **{f"{stage}.machines.executor": "tests/tasks/execution/test_dask.py" for stage in SPREAD_STAGES},
    **{f"{stage}.machines.address": "tests/tasks/execution/test_dask.py" for stage in SPREAD_STAGES},
}
"""Fields that do not count, each with the reason or with the proof that they change no byte."""


@pytest.mark.parametrize("all_values", [False, pytest.param(True, marks=pytest.mark.joints)], ids=["quick", "whole"])
def test_every_field_counts_or_is_runtime(
    alloy: Path, tmp_path: Path, joint: Callable[..., Any], all_values: bool
) -> None:
    recipe = load_recipe(alloy / "alloy.toml", tmp_path)
    fields: set[str] = set()
    changed: set[str] = set()
    free: set[str] = set()
    with joint("identity: fields changed") as counted, joint("identity: runtime fields changed") as runtime:
        for stage, config in _configurations(recipe):
            before = _identity(stage, config)
            for field, place, values in _fields(stage, config):
                if field in changed and (not all_values or any(isinstance(key, int) and key > 0 for key in place)):
                    continue
                fields.add(field)
                for other, value in _valid(config, place, values):
                    changed.add(field)
                    after = _identity(stage, other)
                    reported = first_difference(before.parts(), after.parts())
                    case = f"{stage}.{_text(place)} = {value!r} was named as {reported}"
                    if _is_runtime(config, place):
                        free.add(field)
                        runtime.expect(after.key == before.key and reported is None, case)
                    else:
                        named = reported is not None and reported.startswith(f"params.{_text(place)}")
                        counted.expect(after.key != before.key and named, case)
                    if not all_values:
                        break
        counted.note = f"{len(changed)} fields of {len(STAGES)} stages; every miss named its field"
        runtime.note = "none changed the key"
    assert fields - changed == set(ONE_VALUE), "name another value in OTHERS, or the reason in ONE_VALUE"
    assert free == set(RUNTIME_FIELDS), "a field that is marked as runtime needs its reason or proof in RUNTIME_FIELDS"


def test_the_configurations_have_a_value_of_every_kind(alloy: Path, tmp_path: Path) -> None:
    """A kind of table that they leave empty would hide its fields from the proof above."""
    recipe = load_recipe(alloy / "alloy.toml", tmp_path)
    present = {type(model) for _, config in _configurations(recipe) for model, _ in _models(config, ())}
    wanted = {model for name in STAGES for model in _models_of_type(Recipe.model_fields[name].annotation)}
    assert wanted - present == set()


def test_every_other_part_counts(alloy: Path, tmp_path: Path, joint: Callable[..., Any]) -> None:
    recipe = load_recipe(alloy / "alloy.toml", tmp_path)
    with joint("identity: stage, parents and code changed") as tally:
        for name in STAGES:
            whole = replace(
                _identity(name, getattr(recipe, name)), parents={"documents": "00", "benchmark/cloze": "11"}
            )
            changes: dict[str, Identity] = {
                'stage: "': replace(whole, stage="another"),
                "the input `documents` has other content": replace(whole, parents={**whole.parents, "documents": "22"}),
                "the input `benchmark/cloze` has": replace(whole, parents={**whole.parents, "benchmark/cloze": "22"}),
                "the input `extra` is new": replace(whole, parents={**whole.parents, "extra": "33"}),
                "the input `documents` was removed": replace(whole, parents={"benchmark/cloze": "11"}),
                "code: tasks.common.numeric.f is new": replace(
                    whole, code=_with(whole.code, "tasks.common.numeric:f", "1")
                ),
                "code: tasks.artifacts.report.StageReport was edited": replace(
                    whole, code=_with(whole.code, "tasks.artifacts.report:StageReport", "1")
                ),
            }
            for cause, other in changes.items():
                reported = str(first_difference(whole.parts(), other.parts()))
                tally.expect(
                    other.key != whole.key and reported.startswith(cause), f"{name}: {cause} was named as {reported}"
                )
        tally.note = "every miss named the part"


def test_every_deciding_version_counts(
    alloy: Path, tmp_path: Path, joint: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(alloy / "alloy.toml", tmp_path)
    installed = metadata.version
    with joint("identity: versions of libraries changed") as tally:
        monkeypatch.setenv("OPENBLAS_CORETYPE", "generic")
        for name in STAGES:
            before = _identity(name, getattr(recipe, name))
            for library in before.libs:
                with monkeypatch.context() as patch:
                    if library == tasks.artifacts.identity.UNICODE:
                        patch.setattr(unicodedata, "unidata_version", "99.0.0")
                    elif library == tasks.artifacts.identity.PYTHON:
                        patch.setattr(platform, "python_version_tuple", lambda: ("3", "99", "0"))
                    elif library == tasks.artifacts.identity.ENVIRONMENT:
                        patch.setenv("OPENBLAS_CORETYPE", "another")
                    elif library in machine.PARTS:
                        patch.setitem(machine.PARTS, library, lambda environment: "riscv64")
                    else:
                        other = {library: "99.99"}
                        patch.setattr(metadata, "version", lambda it, other=other: other.get(it) or installed(it))
                    after = _identity(name, getattr(recipe, name))
                reported = str(first_difference(before.parts(), after.parts()))
                named = reported.startswith(f"libs.{library}: ")
                tally.expect(after.key != before.key and named, f"{name}: another {library} was named as {reported}")
        tally.note = "every miss named the library"


def test_another_format_of_artifacts_counts(
    alloy: Path, tmp_path: Path, joint: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(alloy / "alloy.toml", tmp_path)
    with joint("identity: format of artifacts changed") as tally:
        for name in STAGES:
            before = _identity(name, getattr(recipe, name))
            existing, key = before.parts(), before.key
            with monkeypatch.context() as patch:
                patch.setattr(tasks.artifacts.identity, "FORMAT", 99)
                after = replace(before)
                reported = first_difference(existing, after.parts())
                tally.expect(after.key != key and reported == f"format: {FORMAT} -> 99", f"{name}: named as {reported}")


def _identity(name: str, config: StrictConfig) -> Identity:
    (stage,) = (
        value for value in vars(importlib.import_module(f"tasks.{name}.stage")).values() if isinstance(value, Stage)
    )
    return stage_identity(stage, config, {}, {})


def _with(code: Code, name: str, digest: str) -> Code:
    """The code with another definition of its own."""
    return Code(f"{code.digest} and {name}", code.roots, {**code.definitions, name: digest})


def _configurations(recipe: Recipe) -> Iterator[tuple[str, StrictConfig]]:
    """Every stage's configuration, and another where fields exclude each other."""
    for stage in STAGES:
        yield stage, getattr(recipe, stage)
    cluster = Machines(executor="dask", address="tcp://head:8786")
    for stage in SPREAD_STAGES:
        yield stage, getattr(recipe, stage).model_copy(update={"machines": cluster})
    raw = recipe.sample.model_dump()
    raw["sources"] = [{**source, "weight": None} for source in raw["sources"]]
    yield "sample", type(recipe.sample).model_validate({**raw, "temperature": 2.0})
    whole = recipe.chunk.model_dump() | {"tombstones": ()}
    yield "chunk", type(recipe.chunk).model_validate(whole)
    masked = whole | {"objective": "masked_lm", "packing": "concat"}
    yield "chunk", type(recipe.chunk).model_validate(masked)
    phased = {"phases": [{"tokens": 100, "weights": {"notes": 1.0}}]}
    yield "chunk", type(recipe.chunk).model_validate(recipe.chunk.model_dump() | phased)
    spans = {"objective": "span_corruption", "denoising": "mass_style", "input_length": 64, "row_length": 63}
    yield "chunk", type(recipe.chunk).model_validate(masked | spans)
    yield "vocab", type(recipe.vocab)(base=Path("base.model"), extend={"zh": 100}, normaliser="none")
    yield "vocab", type(recipe.vocab)(model_type="wordpiece")
    yield "train", type(recipe.train)(base_model=Path("base"))
    annealed = {"phases": [{"share": 0.1, "weights": {"notes": 1.0}, "start_lr": 0.01, "end_lr": 0.0}]}
    yield "train", type(recipe.train).model_validate(recipe.train.model_dump() | annealed)
    gate = {"sources": ["code"], "base_model": "base"}
    yield "evaluate", type(recipe.evaluate).model_validate({**recipe.evaluate.model_dump(), "gate": gate})
    scored = {"benchmarks": {"quiz": {"form": "extraction"}}}
    yield "evaluate", type(recipe.evaluate).model_validate({**recipe.evaluate.model_dump(), **scored})
    transferred = GPTConfig(mup_base_width=64, mup_base_head_size=32)
    for network in (
        GPTConfig(positions="learned"),
        GPTConfig(embedding_width=32),
        GPTConfig(experts=4),
        transferred,
        BERTConfig(),
        T5Config(),
    ):
        yield "train", type(recipe.train)(model=network)
    yield "train", type(recipe.train)(ranks=4, tensor_parallel=2, pipeline_parallel=2)
    yield "train", type(recipe.train).model_validate({"ranks": 4, "hosts": {"count": 2, "address": "head:29400"}})
    yield "train", type(recipe.train)(dtype="float16")
    yield "train", type(recipe.train)(engine="deepspeed")
    rung = {"lr_factor": 0.5, "max_norm": 0.3, "beta2": 0.9, "optimizer": "sgd", "dtype": "bfloat16"}
    yield "train", type(recipe.train).model_validate({"guard": {"ladder": [rung]}})


def _fields(stage: str, config: StrictConfig) -> Iterator[tuple[str, tuple[str | int, ...], list[Any]]]:
    """Every field of a configuration and of the models within it: its name, its place, and values to try."""
    for model, path in _models(config, ()):
        for name, field in type(model).model_fields.items():
            if _is_table(field.annotation):
                continue
            place = (*path, name)
            general = f"{stage}.{'.'.join(str(key) for key in place if isinstance(key, str))}"
            yield general, place, OTHERS.get(general) or _others(field.annotation, getattr(model, name))


def _is_table(annotation: Any) -> bool:
    """Whether a field always holds a model, be it one of several kinds."""
    if get_origin(annotation) is Annotated:
        return _is_table(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_table(kind) for kind in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _models(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[BaseModel, tuple[str | int, ...]]]:
    if isinstance(value, BaseModel):
        yield value, path
        for name in type(value).model_fields:
            yield from _models(getattr(value, name), (*path, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _models(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _models(item, (*path, key))


def _models_of_type(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models_of_type(field.annotation)
    for argument in get_args(annotation):
        yield from _models_of_type(argument)


def _valid(config: StrictConfig, place: tuple[str | int, ...], values: list[Any]) -> Iterator[tuple[StrictConfig, Any]]:
    """Those of the values with which the whole configuration is valid, and another one."""
    for value in values:
        raw = config.model_dump()
        at: Any = raw
        for key in place[:-1]:
            if isinstance(at[key], tuple):
                at[key] = list(at[key])
            at = at[key]
        at[place[-1]] = value
        try:
            other = type(config).model_validate(raw)
        except ValidationError:
            continue
        if other != config:
            yield other, value


def _is_runtime(config: BaseModel, place: tuple[str | int, ...]) -> bool:
    at: Any = config
    for key in place:
        if isinstance(at, BaseModel):
            field = type(at).model_fields[str(key)]
            if any(isinstance(mark, Runtime) for mark in field.metadata):
                return True
            at = getattr(at, str(key))
        else:
            at = at[key]
    return False


def _text(place: tuple[str | int, ...]) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)
    return text.removeprefix(".")


def _others(annotation: Any, value: Any) -> list[Any]:
    """Other values of a type: not all are within the field's bounds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _others(arguments[0], value)
    if origin in (Union, UnionType):
        inner = [argument for argument in arguments if argument is not NoneType]
        found = [other for argument in inner for other in _others(argument, value)]
        return found if value is None or NoneType not in arguments else [*found, None]
    if origin is Literal:
        return [argument for argument in arguments if argument != value]
    if origin in (tuple, list):
        items = list(value or ())
        more = _others(arguments[0], items[-1] if items else None)[:3]
        return [*([items[:-1], items[::-1]] if items else []), *([*items, item] for item in more)]
    if origin is dict:
        return [{**(value or {}), "notes": item} for item in _others(arguments[1], None)] + ([{}] if value else [])
    if annotation is bool:
        return [not value]
    if annotation is int:
        return [value + 1, value - 1, value * 2, value // 2] if value is not None else [1, 2, 64, 128]
    if annotation is float:
        return [value * 2, value / 2, value * 0.99, value + 0.01] if value is not None else [0.5, 1.5]
    if annotation is str:
        return [f"{value}x", "xx"] if value is not None else ["xx"]
    if annotation is Path:
        return [Path(f"{value}x")]
    return []
