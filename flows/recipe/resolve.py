"""Resolve a recipe's values: complete what stages share or derive from each other, before the recipe is validated.

Values that several stages need (sources and their weights, seed, budget, context length) are written once, above all
tables, and handed to the stages here. The settings of the network come from its preset and its base model as well, the
training objective and the architecture from each other, and `weights_from` reads the shares that `bessemer study mix`
found.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.recipe.benchmark_tasks import split_benchmarks
from flows.recipe.checks import row_length_settings, table_at
from flows.recipe.counts import parse_count
from flows.recipe.errors import format_recipe_errors
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.recipe.tables import model_within
from model.checksummed_json import read_optionally_sealed
from model.config.extent import share_of
from model.config.network import OBJECTIVE_OF, GPTConfig
from model.config.options import PhaseConfig
from model.config.presets import KEY, expand_preset, preset_overrides
from model.errors import InputError, RecipeError
from tasks.artifacts.references import LATEST
from tasks.chunk.config import ChunkConfig
from tasks.common.config import StrictConfig
from tasks.common.confinement import check_file
from tasks.execution.machines import Machines
from tasks.vocab.config import BERT_TOKENS

MIXTURE_KEYS = ("temperature", "max_epochs", "allow_many_epochs")
"""Keys that sample and chunk share: sample keeps text for the mixture and chunk builds it."""

SHARED_KEYS = ("sources", "budget_tokens", *MIXTURE_KEYS)
"""Keys that a recipe writes above all tables and that sample takes."""

OTHER_KEYS = ("benchmarks", "weights_from", "keep", "machines")
"""Keys and tables of no stage that several stages are completed from."""

T5_SENTINELS = 100
"""Enough for inputs of up to 1,809 tokens; for longer ones the recipe sets `vocab.sentinels`."""

WEIGHTS_HINT = "Run `bessemer study mix` again, or remove the key `digest` from a file that you changed yourself."


class _MachinesTable(StrictConfig):
    machines: Machines


def resolve_recipe(values: dict[str, Any], *, origin: str, folder: Path, limit: float) -> tuple[str, ...]:
    """Complete the values of a recipe in place, so that each stage has a table of its own, and return warnings.

    `origin` names the recipe in errors; `folder` is where a relative `weights_from` starts; `limit` is the share of
    each source to keep. Raises RecipeError, and InputError or IntegrityError for a mixture file.
    """
    shared = _pop_shared(values, origin, folder, limit)
    check_tables(values, origin)
    split_benchmarks(values, origin)
    if "base_model" in values.get("train", {}):  # Its description is read before all is checked.
        check_file(f"{origin}: train.base_model", str(values["train"]["base_model"]))
    warnings = preset_warnings(values.get("train", {}))
    values["train"] = {**values.get("train", {}), "model": resolve_model_config(values.get("train", {}), origin)}
    objective = _resolve_objective(values, origin)
    if isinstance(budget := values["chunk"].get("budget_tokens"), str):
        values["chunk"]["budget_tokens"] = _read_count(budget, f"{origin}: chunk.budget_tokens")
    shared.update(row_length_settings(_context(values), objective))
    shared["phases"] = _mixture_phases(values["train"], shared, values["chunk"])
    _set_gate_base(values)
    if values["train"].get("device") == "cuda":
        values["evaluate"] = {"device": "cuda", **values.get("evaluate", {})}
    values["vocab"] = _with_special_tokens(_with_base_vocabulary(values, objective), objective)
    _hand_out(shared, values)
    return warnings


def _pop_shared(values: dict[str, Any], origin: str, folder: Path, limit: float) -> dict[str, Any]:
    """Take the values that several stages share out of `values` and return them under the stages' own keys."""
    sources = values.pop("sources", None)
    if not isinstance(sources, list) or not sources:
        raise RecipeError(f"{origin}: no sources; add at least one [[sources]] table with `name`, `paths` and `weight`")
    weights_from = values.pop("weights_from", None)
    if weights_from is not None:
        check_file(f"{origin}: weights_from", folder / str(weights_from))
    sources = apply_mixture_weights(sources, weights_from, folder, origin)
    # Validation reports the others.
    named = [source for source in sources if _is_named(source)]
    shared = {
        "sources": [_source_for_sample(source, at, origin) for at, source in enumerate(sources)],
        "seed": values.get("seed", 1),
        "limit": limit,
        "weights": {source["name"]: source["weight"] for source in named if "weight" in source},
        "priorities": {source["name"]: source["priority"] for source in named if "priority" in source},
        "read_last": [
            source["name"] for at, source in enumerate(sources) if _is_named(source) and _may_leave(source, at, origin)
        ],
    }
    if "budget_tokens" in values:
        shared["budget_tokens"] = _read_count(values.pop("budget_tokens"), f"{origin}: budget_tokens")
    shared.update({key: values.pop(key) for key in MIXTURE_KEYS if key in values})
    if "keep" in values:
        kept = str(values.pop("keep"))
        # A stage knows no recipe's name.
        shared["keep"] = f"{LATEST}{values.get('name', '')}" if kept == "latest" else kept
    if "machines" in values:
        shared["machines"] = _validate_machines(values.pop("machines"), origin)
    return shared


def apply_mixture_weights(sources: list[Any], file: Any, folder: Path, origin: str) -> list[Any]:
    """Return the sources with the weights of a mixture file (`weights_from`); unchanged where `file` is None.

    A relative path starts at `folder`. Raises RecipeError where a source has a weight of its own too or the file is of
    other sources, InputError where it is no mixture file, IntegrityError where it is damaged.
    """
    if file is None:
        return sources
    path = folder / str(file)
    try:
        weights = json.loads(read_optionally_sealed(path, WEIGHTS_HINT))["weights"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{origin}: weights_from = {str(file)!r} names {path}, which is no file of weights"
            f" ({type(error).__name__}). `bessemer study mix RECIPE` writes one: mixtures/NAME/weights.json"
        ) from error
    named = [source for source in sources if isinstance(source, dict)]
    weighted = [source.get("name") for source in named if "weight" in source]
    if weighted:
        raise RecipeError(
            f"{origin}: source `{weighted[0]}` has a weight, and weights_from gives it another; leave one of them out"
        )
    names = {str(source.get("name")) for source in named}
    if names != set(weights):
        raise RecipeError(
            f"{origin}: weights_from was found for the sources {', '.join(sorted(weights))}, and the recipe has"
            f" {', '.join(sorted(names))}; shares hold only for the sources that they were found for"
        )
    return [{**source, "weight": weights[source["name"]]} if isinstance(source, dict) else source for source in sources]


def _source_for_sample(source: Any, at: int, origin: str) -> Any:
    """Return a source as sample takes it: its size as a number, and without what other stages decide."""
    if not isinstance(source, dict):
        return source
    read = {key: value for key, value in source.items() if key not in ("priority", "may_leave")}
    language = read.get("language")
    if isinstance(language, str) and not _LANGUAGE.fullmatch(language):
        raise RecipeError(
            f"{origin}: sources[{at}].language is {language!r}; write an ISO 639 code such as en, zh or zh-Hant"
        )
    if "tokens" in read:
        read["tokens"] = _read_count(read["tokens"], f"{origin}: tokens of source `{read.get('name')}`")
    return read


_LANGUAGE = re.compile(r"[a-zA-Z]{2,3}([-_][a-zA-Z0-9]+)*")
"""Rules go by the code: `english` would be a language for which none was made."""


def _is_named(source: Any) -> bool:
    return isinstance(source, dict) and isinstance(source.get("name"), str)


def _may_leave(source: Mapping[str, Any], at: int, origin: str) -> bool:
    """Return whether the source, the one `at` this place, is marked as one that may leave."""
    value = source.get("may_leave", False)
    if not isinstance(value, bool):
        raise RecipeError(f"{origin}: sources[{at}].may_leave is {value!r}; it is true or false")
    return value


def _read_count(value: Any, where: str) -> int:
    """Return a positive count of tokens from a number or a text such as `1.5B`."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return int(parse_count(str(value), where))


def _validate_machines(table: Any, origin: str) -> Machines:
    """Return the machines of all stages, validated once, so that an error is shown once."""
    try:
        return _MachinesTable.model_validate({"machines": table}).machines
    except ValidationError as error:
        raise RecipeError(format_recipe_errors(error, _MachinesTable, (), origin)) from error


def check_tables(values: Mapping[str, Any], origin: str) -> None:
    """Raise RecipeError where a table that is read before validation is a plain value."""
    places = {stage: values.get(stage, {}) for stage in STAGES}
    train = places["train"]
    if isinstance(train, dict):
        places["train.model"] = train.get("model", {})
    for place, found in places.items():
        table_at(found, place, origin)


def preset_warnings(train: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a warning (without full stop) where settings of `train.model` differ from those of its preset."""
    model = train.get("model", {})
    found = preset_overrides(model)
    if not found:
        return ()
    changes = ", ".join(f"{key} {requested} instead of {published}" for key, (requested, published) in found.items())
    keys = " and ".join(found) if len(found) < 3 else "these keys"
    return (
        f"the network is no {model[KEY]}, but one with {changes}: settings next to a preset override it. Leave {keys}"
        f" out of train.model for the published network",
    )


def resolve_model_config(train: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return `train.model` completed with the settings of its preset and of `train.base_model`.

    Raises RecipeError for an unknown preset; `origin` names the recipe. A base model that cannot be read is reported by
    the stage that needs it.
    """
    model = expand_preset(dict(train.get("model", {})), f"{origin}: train.model")
    base = train.get("base_model")
    if not isinstance(base, str | Path):
        return model
    from tasks.train.base_model import settings_of_base

    of_base = settings_of_base(Path(base))
    if model.get("architecture", of_base.get("architecture")) != of_base.get("architecture"):
        return model
    return {**of_base, **model}


def _resolve_objective(values: dict[str, Any], origin: str) -> str:
    """Return the training objective; in `values`, set it and the architecture, each from the other where left out."""
    train, chunk = dict(values.get("train", {})), dict(values.get("chunk", {}))
    model = dict(train.get("model", {}))
    requested, architecture = chunk.get("objective"), model.get("architecture")
    needed = OBJECTIVE_OF.get(str(architecture))
    if requested is not None and needed is not None and requested != needed:
        fitting = next((name for name, of in OBJECTIVE_OF.items() if of == requested), architecture)
        raise RecipeError(
            f"{origin}: train.model.architecture is {architecture}, which is trained on {needed}, and chunk.objective"
            f" is {requested}, on which a {fitting} is. Leave one of the two out; it follows from the other."
        )
    objective = str(requested or needed or "causal_lm")
    if architecture is None:
        model.update(("architecture", name) for name, of in OBJECTIVE_OF.items() if of == objective)
    values["train"] = {**train, "model": model}
    values["chunk"] = {**chunk, "objective": objective}
    return objective


def _context(values: Mapping[str, Any]) -> int:
    """Return the context length of the network; its default for a value that is no number, which validation refuses."""
    default = GPTConfig.model_fields["context"].default
    context = values["train"]["model"].get("context", default)
    return context if isinstance(context, int) and not isinstance(context, bool) else default


def _mixture_phases(
    train: Mapping[str, Any], shared: Mapping[str, Any], chunk: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the phases of chunk: those of train that change the mixture, each up to the next one, in tokens.

    Returns none where they are invalid, which the validation of train reports.
    """
    budget = shared.get("budget_tokens", chunk.get("budget_tokens", ChunkConfig.model_fields["budget_tokens"].default))
    try:
        phases = [PhaseConfig.model_validate(phase) for phase in train.get("phases", ())]
    except (ValidationError, TypeError):
        return []
    found: list[dict[str, Any]] = []
    for phase in phases:
        tokens = round(share_of(phase.share, budget) * budget)
        if phase.weights:
            found.append({"tokens": tokens, "weights": phase.weights})
        elif found:
            found[-1]["tokens"] += tokens
    return found


def _set_gate_base(values: dict[str, Any]) -> None:
    """Set the base model of the gate, which compares with the model that training starts from."""
    evaluate, base = values.get("evaluate", {}), values["train"].get("base_model")
    if isinstance(evaluate.get("gate"), dict) and base is not None:
        values["evaluate"] = {**evaluate, "gate": {"base_model": base, **evaluate["gate"]}}


def _with_base_vocabulary(values: Mapping[str, Any], objective: str) -> dict[str, Any]:
    """Return the vocabulary's settings, with those of the base model's own vocabulary unless they name another file.

    The file of a T5 lacks its sentinels, and its normaliser loses text.
    """
    vocab, base = dict(values.get("vocab", {})), values["train"].get("base_model")
    if not isinstance(base, str | Path):
        return vocab
    from tasks.train.base_model import vocabulary_of_base

    found = vocabulary_of_base(Path(base))
    if found is None or ("base" in vocab and Path(str(vocab["base"])).parent != Path(base)):
        return vocab
    file, rows = found
    of_t5 = {"sentinels": T5_SENTINELS, "normaliser": "none"} if objective == "span_corruption" else {}
    return {"base": str(file), "embedding_rows": rows, **of_t5, **vocab}


def _with_special_tokens(vocab: dict[str, Any], objective: str) -> dict[str, Any]:
    """Return the vocabulary's settings with the special tokens that the objective needs; a base has its own."""
    if vocab.get("base") is not None:
        return vocab
    if objective == "masked_lm" and vocab.get("model_type") != "wordpiece":
        return {"special_tokens": BERT_TOKENS, **vocab}
    if objective == "span_corruption":
        return {"sentinels": T5_SENTINELS, **vocab}
    return vocab


def _hand_out(shared: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Write the shared values into the table of each stage that has such a key and leaves it out."""
    for stage in STAGES:
        section = dict(values.get(stage, {}))
        config = model_within(Recipe.model_fields[stage].annotation)
        for key, value in shared.items():
            if key in config.model_fields:
                section.setdefault(key, value)
        values[stage] = section
