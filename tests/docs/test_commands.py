"""Every command that README and docs/ show: its words exist, and, behind the marker `prove`, it runs.

A command is a line of a code block that begins with a program of PROGRAMS. A document's commands run in their order in
one folder, with the files that it shows below `<!-- file: NAME -->` and what PREPARED makes; a block below
`<!-- not run: REASON -->` is left out, with the reason. Trainings are made small by what SMALLER appends; nothing else
is changed but the names in capitals.
"""

import functools
import os
import random
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from flows.cli import app
from flows.recipe.load import load_recipe

PROJECT = Path(__file__).parents[2]
LISTS = {"docs/decisions.md", "docs/survey.md", "docs/reference.md"}
"""They name commands that were run once, or are made from the commands themselves."""
DOCUMENTS = [
    path
    for path in (PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md")))
    if path.relative_to(PROJECT).as_posix() not in LISTS
]
PROGRAMS = """bessemer make python pip prefect printf mkdir cp tensorboard wandb docker sudo systemctl systemd-analyze
    git dask curl apt-get .ci/run .venv/bin/[a-z]+ deployments/[a-z_/]+\\.sh [A-Z_]+=\\S+""".split()  # noqa: SIM905
COMMAND = re.compile(rf"(?:{'|'.join(PROGRAMS)})(?:\s|$)")
SHOWN_FILE = re.compile(r"<!-- file: (\S+) -->\s+```[a-z]*\n(.*?)```", re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
PATHS = re.compile(r"(?:tests|benchmarks)/[a-z_/]+(?:\.py)?")
INLINE = re.compile(r"`((?:\.venv/bin/)?bessemer [a-z][^`]*)`")
OPERATORS = {"|", ">", ">>", "<", "&&", "||", "&", ";", "2>"}
SECONDS = 3600.0
"""For one command: the machine may be busy with other things."""


@dataclass(frozen=True)
class Command:
    """One command of a document, and the reason why it is not run, where there is one."""

    document: str
    line: int
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {self.text}"


def commands_of(path: Path) -> Iterator[Command]:
    """The commands in the code blocks of a document, in their order; lines that end in a backslash are joined."""
    reason: str | None = None
    fenced = held = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("```"):
            fenced = "" if fenced else "```"
            reason = None if not fenced else reason
        elif marked := NOT_RUN.search(line):
            reason = marked[1]
        elif fenced or line.startswith("    "):
            text = held + line.strip().removeprefix("$ ")
            held = f"{text[:-1]} " if text.endswith("\\") else ""
            if not held and COMMAND.match(text):
                yield Command(path.relative_to(PROJECT).as_posix(), number, text, reason)
        elif line.strip():
            reason = None


COMMANDS = [command for path in DOCUMENTS for command in commands_of(path)]
INLINE_COMMANDS = [
    Command(path.relative_to(PROJECT).as_posix(), 0, " ".join(text.split()), "a mention")
    for path in DOCUMENTS
    for text in INLINE.findall(path.read_text(encoding="utf-8"))
]


@functools.cache
def command_line() -> Any:
    """Return the command line of `bessemer`, which takes .02 s to put together."""
    return get_command(app)


def wrong_words(text: str) -> list[str]:
    """The words of a `bessemer` command that no such command has."""
    try:
        words = shlex.split(re.split(r"\s{3,}(?=\S)", text)[0], comments=True)
    except ValueError as error:
        return [str(error)]
    start = next((place for place, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)), 0)
    if words[start].rpartition("/")[2] != "bessemer":
        return []
    place = command_line()
    rest = words[start + 1 :]
    while rest and isinstance(place, TyperGroup) and not rest[0].startswith("-"):
        if rest[0] not in place.commands and getattr(place, "invoke_without_command", False):
            break
        if rest[0] in OPERATORS or not rest[0].islower():
            break
        if rest[0] not in place.commands and place.name == "search":
            break
        if rest[0] not in place.commands:
            return [f"no command `{rest[0]}`"]
        place, rest = place.commands[rest[0]], rest[1:]
    known = {"-h", "--help", *(name for one in place.params for name in one.opts)}
    if isinstance(place, TyperGroup) and "run" in place.commands:
        known |= {name for one in place.commands["run"].params for name in one.opts}
    end = next((number for number, word in enumerate(rest) if word in OPERATORS), len(rest))
    options = [word.partition("=")[0].rstrip(",.;") for word in rest[:end] if re.match(r"--?[a-z]", word)]
    return [f"no option {name}" for name in options if name not in known]


def test_the_documents_show_commands() -> None:
    assert len([command for command in COMMANDS if command.not_run is None]) > 20
    assert {"README.md", "docs/tutorial.md", "docs/installing.md"} <= {command.document for command in COMMANDS}


def test_every_word_of_every_command_exists() -> None:
    wrong = {str(command): wrong_words(command.text) for command in [*COMMANDS, *INLINE_COMMANDS]}
    assert {command: words for command, words in wrong.items() if words} == {}


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("bessemer rnu quickstart", ["no command `rnu`"]),
        (".venv/bin/bessemer run quickstart --forse", ["no option --forse"]),
        ("bessemer training resume --form-step 3", ["no option --form-step"]),
        ("bessemer model predict x --field a=b asked.jsonl > y --odd", []),
        ("bessemer study search recipe.toml --trials 40      # goes on", []),
    ],
)
def test_a_word_that_does_not_exist_is_seen(text: str, reported: list[str]) -> None:
    assert wrong_words(text) == reported


def test_every_target_script_and_module_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    missing = []
    for command in COMMANDS:
        words = command.text.split()
        if words[0] == "make" and not {word for word in words[1:2] if word.islower()} <= targets:
            missing.append(str(command))
        missing += [str(command) for word in words if word.startswith("deployments/") and not (PROJECT / word).exists()]
        for module in re.findall(r"python -m ((?:flows|model|tasks)[a-z_.]*)", command.text):
            if not any((PROJECT / module.replace(".", "/")).with_suffix(end).exists() for end in ("", ".py")):
                missing.append(str(command))
    assert missing == []


def test_every_recipe_that_is_shown_loads(tmp_path: Path) -> None:
    shown = [file for path in DOCUMENTS for file in SHOWN_FILE.findall(path.read_text(encoding="utf-8"))]
    assert len(shown) >= 3
    for name, content in shown:
        (tmp_path / name).write_text(content)
        assert load_recipe(tmp_path / name, tmp_path).name == name.removesuffix(".toml")


def test_what_is_not_run_here_is_run_by_a_test_that_exists() -> None:
    """A reason may name the test that does the same on something small."""
    named = {(command.document, path) for command in COMMANDS for path in PATHS.findall(command.not_run or "")}
    assert len(named) > 5
    assert [f"{document}: {path}" for document, path in sorted(named) if not (PROJECT / path).exists()] == []


def test_every_link_leads_to_a_file() -> None:
    broken = [
        f"{path.name}: {target}"
        for path in sorted([*DOCUMENTS, *(PROJECT / name for name in LISTS if (PROJECT / name).exists())])
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


TINY = (
    "--set budget_tokens=20K --set vocab.vocab_size=768 --set train.model.width=32 --set train.model.layers=2"
    " --set train.model.heads=2 --set train.model.context=64 --set train.batch_rows=8 --set train.micro_batch_rows=8"
    " --set evaluate.max_items=8"
)
SMALLER = [
    (r"^(rm \S+ && |\.venv/bin/|)bessemer (demo|run (quickstart|first\.toml|mine\.toml)|estimate first\.toml)\b", TINY),
    (r"^(bessemer|\.venv/bin/bessemer) (plan|store accept \w+) (quickstart|first\.toml|mine\.toml)\b", TINY),
    (r"^bessemer serve start\b", "--port {port}"),
]
"""What is appended to commands: a network and a budget with which a training takes seconds, a port that is free."""
NAMES = {"RUN": "latest", "SOME-LONG-WORD": "some-long-word", "FOLDER": "english-text", "NAME": "59.txt"}
PREPARED = {
    "README.md": "rm recipe.toml && bessemer demo",
    "docs/reuse.md": "bessemer demo",
    **dict.fromkeys(("docs/run_page.md", "docs/installing.md", "docs/using_models.md"), "bessemer run recipe.toml"),
}
"""What is run before the commands of a document, which show what is done with a run."""
EACH_ALONE = {"docs/operations.md"}
"""Its services are alternatives: each is brought up under a root of its own, and down again."""
RUN_DOCUMENTS = sorted({command.document for command in COMMANDS if command.not_run is None})


@pytest.fixture
def world(foundry: Path, tmp_path: Path) -> Path:
    """A folder with the small recipe, the environment and the scripts, as readers of the docs have them."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "recipe.toml").write_text((foundry / "foundry.toml").read_text().replace("{recipe}", str(foundry)))
    (folder / ".venv").symlink_to(Path(sys.prefix))
    for name in ("benchmarks", "deployments", "flows", "tasks", "model", "tests", "pyproject.toml"):
        (folder / name).symlink_to(PROJECT / name)
    for name, (letters, stops) in TEXTS.items():
        (folder / name).mkdir()
        for number in range(60):
            (folder / name / f"{number:02}.txt").write_text(prose(random.Random(f"{name} {number}"), letters, stops))
    return folder


TEXTS = {
    "english-text": ("abdegilmnoprst", "the of and to in that have with for as be by"),
    "more": ("acefhiklnorsu", "the of and to in that have with for as be by"),
    "russian": ("абвгдеиклмнопрст", "и в не на что как по это из для но от"),
}
"""What the documents read: sixty texts of words that nobody knows between words that everybody uses."""


def prose(draw: random.Random, letters: str, stops: str) -> str:
    """Text that rules for prose let pass."""

    def word() -> str:
        return "".join(draw.choices(letters, k=draw.randint(3, 8)))

    sentences = [" ".join(f"{draw.choice(stops.split())} {word()}" for _ in range(6)) for _ in range(40)]
    return "\n".join(f"{sentence.capitalize()}." for sentence in sentences) + "\n"


def smaller(text: str, port: int) -> str:
    """The command as it is run: small, on a free port, and with names in place of words in capitals."""
    for name, value in NAMES.items():
        text = re.sub(rf"\b{name}\b", value, text)
    command = re.split(r"\s+#\s", text, maxsplit=1)[0].rstrip()
    for pattern, words in SMALLER:
        if re.search(pattern, command):
            command = f"{command} {words.format(port=port)}"
    return command


def first_run(folder: Path) -> str:
    """The id of the oldest run under the folder's own root; FIRST where there is none yet."""
    return min((path.name for path in (folder / "bessemer-data" / "runs").glob("*")), default="FIRST")


def run(text: str, folder: Path) -> str:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": str(PROJECT),
        "PREFECT_HOME": str(folder / "prefect"),
    }
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    print(f"{time.monotonic() - began:6.1f} s  {text}")
    return done.stdout


@pytest.mark.prove
@pytest.mark.parametrize("document", RUN_DOCUMENTS)
def test_every_command_runs(document: str, world: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if document in PREPARED:
        run(smaller(PREPARED[document], port), world)
    for name, content in SHOWN_FILE.findall((PROJECT / document).read_text(encoding="utf-8")):
        (world / name).parent.mkdir(exist_ok=True)
        (world / name).write_text(content)
    wanted = [command for command in COMMANDS if command.document == document and command.not_run is None]
    ran = []
    for command in wanted:
        text = smaller(command.text, port).replace("FIRST", first_run(world))
        alone = (
            f" --root alone-{command.line}"
            if document in EACH_ALONE and text.startswith("bessemer serve start")
            else ""
        )
        try:
            run(text + alone, world)
        finally:
            if alone:
                run(f"bessemer serve stop --now{alone}", world)
        ran.append(command)
    assert ran == wanted
