"""The reference of recipe keys and commands, made from the configuration models and the command line."""

import enum
import inspect
import json
import textwrap
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo
from typer import Typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

from flows.experiments.mixture_config import MixConfig
from flows.experiments.search_config import SearchConfig
from flows.nightly.config import NIGHTLY, NOTIFY, NightlyConfig, NotifyConfig
from flows.recipe.form import SHARED_FIELDS as OF_SEVERAL_STAGES
from flows.recipe.resolve import MIXTURE_KEYS
from flows.recipe.schema import Recipe
from flows.recipe.stages import STAGES
from flows.recipe.tables import described_fields, tables_of
from model.config import Runtime, is_expert
from tasks.execution.machines import Machines
from tasks.sample.config import SampleConfig, Source

HEAD = """# Reference

Every key of a recipe and every command, written by `bessemer reference` from the configuration models and the commands
themselves. [recipes.md](recipes.md) shows how a recipe is written.

## The recipe

A key that is marked *runtime* cannot change a stage's result: it counts in no identity, and changing it rebuilds
nothing. All others do. What is outside of its bounds is refused before anything runs. Of {every} keys the tables show
{shown}; the other {folded}, which few recipes set, are folded below them."""
KEYS_OF_RECIPES = {
    "": (
        "`weights_from` | path | none | File of weights that `bessemer study mix` wrote, instead of the weights of the"
        " sources.",
        "`keep` | text, *runtime* | none | A run, or `latest` for the recipe's last one: what its stages measured over"
        " all documents (sizes of sources, quality classifier, counts of common words, vocabulary, slots) is kept"
        " instead of being measured anew, so that new files change nothing for the old ones. `keep` of a stage's table"
        " has precedence.",
    ),
    "sources": (
        "`priority` | integer | after all that have one | Among copies of a text the one whose source has the smaller"
        " number stays; of equal numbers the longer text.",
        "`may_leave` | true or false | `false` | Read in the last tenth of the training alone, or in as much as it"
        " needs, so that its removal (`bessemer data forget`) repeats no earlier training.",
    ),
    "decontaminate.benchmarks": (
        "`task` | text | none | In `[[benchmarks]]`: a task that ships, whose `fields` and scoring are used.",
    ),
    "train.model": (
        "`preset` | text | none | A published network such as `gpt2-small`, whose settings the other keys override.",
    ),
}
"""Keys of a recipe, by table, that no stage has: the stages' own are derived from them."""
VARIABLES = """
### `[variables]`

Values for `{name}` in paths of the recipe. `{recipe}`, `{root}`, `{stdlib}` and `{site_packages}` are there without
being written: the recipe's folder, the root of artifacts, and two folders of this Python.
"""


@dataclass(frozen=True)
class _Table:
    """A table of a recipe: its keys, each with whether it is folded away."""

    path: str
    heading: str
    explanation: str
    keys: tuple[tuple[str, FieldInfo, bool], ...]


def reference(app: Typer) -> str:
    """Return the whole page as Markdown, with every command of `app`."""
    tables = list(_tables_of_a_recipe())
    shown = {f"{table.path}.{name}" for table in tables for name, _, folded in table.keys if not folded}
    hidden = {f"{table.path}.{name}" for table in tables for name, *_ in table.keys} - shown
    often = len(shown) + sum(map(len, KEYS_OF_RECIPES.values()))
    parts = [HEAD.format(every=often + len(hidden), shown=often, folded=len(hidden))]
    for table in tables:
        if table.path == STAGES[0]:
            parts.append(VARIABLES)
        parts += _section(table)
    parts += ["\n## The commands\n", "`bessemer COMMAND --help` prints the same.\n"]
    for name, command in _inner(get_command(app)):
        parts += _command(f"bessemer {name}", command)
    return "\n".join(parts).rstrip("\n") + "\n"


def _tables_of_a_recipe() -> Iterator[_Table]:
    above = [(name, described_fields(Recipe)[name]) for name in ("format", "name", "seed")]
    above += [(name, described_fields(SampleConfig)[name]) for name in ("budget_tokens", *MIXTURE_KEYS)]
    yield _Table("", "Above all tables", "", tuple((name, field, is_expert(field)) for name, field in above))
    yield from _tables("sources", Source, "`[[sources]]`")
    beside = {"search": SearchConfig, "mix": MixConfig, NIGHTLY: NightlyConfig, NOTIFY: NotifyConfig}
    for place, config in {stage: Recipe.model_fields[stage].annotation for stage in STAGES}.items():
        yield from _tables(place, config, f"`[{place}]`", left_out={*OF_SEVERAL_STAGES, *MIXTURE_KEYS, "sources"})
    for place, config in {"machines": Machines, **beside}.items():
        yield from _tables(place, config, f"`[{place}]`")


def _tables(
    path: str, config: Any, heading: str, *, folded: bool = False, left_out: Collection[str] = ()
) -> Iterator[_Table]:
    """Yield the table of a model's keys, and those of each table within."""
    described = described_fields(config).items()
    fields = [(name, field, folded or is_expert(field)) for name, field in described if name not in left_out]
    keys = tuple((name, field, hidden) for name, field, hidden in fields if not tables_of(field.annotation))
    yield _Table(path, heading, " ".join((config.__doc__ or "").split()), keys)
    for name, field, hidden in fields:
        for table in tables_of(field.annotation):
            inside = f"{path}.{name}" + (".NAME" if table.kind == "name" else "")
            note = f', `architecture = "{table.tag}"`' if table.tag else ""
            shown = f"`[[{inside}]]`" if table.kind == "list" else f"`[{inside}]`{note}"
            yield from _tables(inside, table.model, shown, folded=hidden)


def _section(table: _Table) -> Iterator[str]:
    yield f"\n### {table.heading}\n"
    if table.explanation:
        yield f"{table.explanation}\n"
    shown = [(name, field) for name, field, folded in table.keys if not folded]
    hidden = [(name, field) for name, field, folded in table.keys if folded]
    if shown:
        yield from _rows(shown)
    yield from (f"| {row} |" for row in KEYS_OF_RECIPES.get(table.path, ()))
    if hidden:
        yield f"\n<details><summary>{len(hidden)} {'more ' if shown else ''}that few recipes set</summary>\n"
        yield from _rows(hidden)
        yield "\n</details>"


def _rows(fields: list[tuple[str, FieldInfo]]) -> Iterator[str]:
    yield "| key | value | default | what it does |"
    yield "|---|---|---|---|"
    for name, field in fields:
        runtime = "*runtime* " if any(isinstance(mark, Runtime) for mark in field.metadata) else ""
        explained = runtime + " ".join((field.description or "").split())
        yield f"| `{name}` | {_cell(_kind(field))} | {_cell(_default(field))} | {_cell(explained)} |"


def _kind(field: FieldInfo) -> str:
    bounds = [words for mark in field.metadata if (words := _bound(mark))]
    return ", ".join([_type(field.annotation), *bounds])


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [_bound(inner) for mark in arguments[1:] for inner in getattr(mark, "metadata", [mark])]
        return ", ".join([_type(arguments[0]), *filter(None, bounds)])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(choice) for choice in arguments if choice is not type(None))
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"{_type(arguments[1])} by {'name' if arguments[0] is str else _type(arguments[0])}"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " or ".join(f"`{json.dumps(member.value)}`" for member in annotation)
    names = {
        "int": "integer",
        "float": "number",
        "str": "text",
        "bool": "true or false",
        "Path": "path",
        "Any": "any value",
    }
    return names.get(getattr(annotation, "__name__", ""), getattr(annotation, "__name__", str(annotation)))


def _bound(mark: Any) -> str:
    for kind, attribute, words in (
        (annotated_types.Ge, "ge", "at least"),
        (annotated_types.Gt, "gt", "above"),
        (annotated_types.Le, "le", "at most"),
        (annotated_types.Lt, "lt", "below"),
    ):
        if isinstance(mark, kind):
            value = getattr(mark, attribute)
            return f"{words} {'2^63' if value == 2**63 else format(value, ',') if isinstance(value, int) else value}"
    return ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    return f"`{json.dumps(value, default=str, ensure_ascii=False)}`"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def _inner(command: Any) -> list[tuple[str, Any]]:
    """Return the commands below one, by name."""
    return list(command.commands.items()) if isinstance(command, TyperGroup) else []


def _command(name: str, command: Any) -> Iterator[str]:
    if not _inner(command) or command.invoke_without_command:
        arguments = [one for one in command.params if isinstance(one, TyperArgument)]
        words = [_argument(one) for one in arguments]
        yield f"\n### `{' '.join([name, *words])}`\n"
        yield f"{_paragraphs(command.help or '')}\n"
        options = [one for one in command.params if isinstance(one, TyperOption) and "--help" not in one.opts]
        if options:
            yield "| option | what it does |"
            yield "|---|---|"
        yield from map(_option, options)
    for word, inner in _inner(command):
        yield from _command(f"{name} {word}", inner)


def _argument(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    word += "..." if argument.nargs != 1 and not word.rstrip("]").endswith("...") else ""
    return word if argument.required else f"[{word.strip('[]')}]"


def _option(option: Any) -> str:
    kind = option.metavar or _type(option.type_descriptor.annotation)
    words = ", ".join(option.opts) + ("" if option.is_flag else f" {kind}")
    shown = option.default not in (None, False, True, "", (), []) and not callable(option.default)
    explained = " ".join((option.help or "").split()) + (f" (`{option.default}` by default)" if shown else "")
    return f"| `{_cell(words)}` | {_cell(explained)} |"


def _paragraphs(text: str) -> str:
    """Return the help as Markdown: text after the mark of a block that is not to be filled keeps its lines."""
    return "\n\n".join(
        textwrap.indent(textwrap.dedent(part.lstrip("\b\n")), "    ")
        if part.startswith("\b")
        else " ".join(part.split())
        for part in inspect.cleandoc(text).split("\n\n")
    )
