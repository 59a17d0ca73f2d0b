"""The input of the demo: real, messy text that every machine with Python has, and a cloze benchmark made from it.

Most sources of `recipes/quickstart.toml` are read in place: two novels that ship with Bessemer, READMEs and licences of
installed packages, source code, notes. `prepare` writes two more things under `ROOT/inputs/quickstart`:

    documentation/   docstrings of the standard library and of large packages, one text a module, and the pages of
                     `help()`: a few megabytes of careful prose. Modules are parsed, never imported
    cloze.jsonl      passages of documentation and READMEs, which stay in the sources (true leaks that the run must
                     find and cut), and passages of documentation that is kept out of the sources (clean)

A cloze item is twenty words of a passage and four phrases, one of which continues it; the others end other passages of
the same kind, so that grammar and style alone do not give the answer away.

The same installation gives the same bytes. An unchanged installation is recognised by names, sizes and times without
reading it, and nothing is written again.
"""

import ast
import importlib.util
import json
import re
import shutil
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.digests import digest_bytes, digest_file
from model.errors import InputError
from model.files import write_atomically
from tasks.common.numeric import seed64

SEED = 1

DOCUMENTED_PACKAGES = ("numpy", "networkx", "sqlalchemy", "fsspec", "prefect", "pyarrow", "torch/nn")
"""Packages other than the standard library whose docstrings become documentation, by their folder in site-packages."""

RESERVED_SHARE = 6
"""One documentation text in this many is kept out of the sources, for clean items."""

LEAKED_ITEMS = {"documentation": 120, "readme": 50}
"""Kind of text -> items. None of licences: they share their paragraphs, so that a few items would leak into nearly all
of them, and documents with a leak are never held out."""

CLEAN_ITEMS = 120

FOLDER = Path("inputs/quickstart")

STAMP = "stamp.json"

CLOZE = "cloze.jsonl"


@dataclass(frozen=True)
class Installation:
    """Folders of a Python's standard library and packages."""

    stdlib: Path
    site_packages: Path
    documented: tuple[str, ...] = DOCUMENTED_PACKAGES

    @staticmethod
    def current() -> "Installation":
        """Return the installation that runs this program."""
        return Installation(Path(sysconfig.get_paths()["stdlib"]), packages_folder())

    def module_sources(self) -> list[tuple[str, Path]]:
        """Return (name, file) of every module whose docstrings are documentation."""
        found = [(f"python/{name}", path) for name, path in module_files(self.stdlib, recursive=False)]
        for package in self.documented:
            folder = self.site_packages / package
            prefix = package.replace("/", ".")
            top = package.partition("/")[0]
            found += [(f"{top}/{prefix}.{name}".rstrip("."), path) for name, path in module_files(folder)]
        return found

    def readmes(self) -> list[Path]:
        """Return the METADATA files of installed packages, which end in their README."""
        found = self.site_packages.glob("*.dist-info/METADATA")
        # This project's own changes with every commit.
        return sorted(path for path in found if not any(part.startswith("bessemer-") for part in path.parts))


def packages_folder() -> Path:
    """Return the folder that holds the packages Bessemer uses: that of Prefect, which need not be this environment's
    own (`python -m venv --system-site-packages`, or Debian's `dist-packages`)."""
    found = importlib.util.find_spec("prefect")
    if found is None or found.origin is None:
        return Path(sysconfig.get_paths()["purelib"])
    return Path(found.origin).parents[1]


def prepare(root: Path, installation: Installation | None = None) -> Path:
    """Write the demo's input under `root` and return its folder; quick when nothing changed since last time.

    Raises InputError where this Python has too little documentation to make the benchmark from, or the root cannot be
    written.
    """
    installation = installation or Installation.current()
    folder = root / FOLDER
    mark = _input_mark(installation)
    if _is_prepared(folder, mark):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--root {root}: cannot be written ({error.strerror}); choose a folder of yours with --root"
        ) from error
    print("collecting the text that comes with Python, once", file=sys.stderr)
    texts = _documentation(installation)
    reserved = {name for name in texts if seed64(SEED, "quickstart", "reserve", name) % RESERVED_SHARE == 0}
    written = {f"documentation/{name}.txt": text.encode() for name, text in texts.items() if name not in reserved}
    lines = (json.dumps(item, ensure_ascii=False) for item in _benchmark(installation, texts, reserved))
    written[CLOZE] = "".join(f"{line}\n" for line in lines).encode()
    _write_folder(folder, written)
    stamp = {"inputs": mark, "outputs": _output_mark(folder)}
    write_atomically(folder / STAMP, json.dumps(stamp, indent=1).encode())
    return folder


def _documentation(installation: Installation) -> dict[str, str]:
    texts = {f"help/{topic}": text for topic, text in help_topics().items()}
    for name, path in installation.module_sources():
        text = module_text(name.partition("/")[2], path.read_bytes())
        if text is not None:
            texts[name] = text
    return texts


def _benchmark(installation: Installation, texts: dict[str, str], reserved: set[str]) -> list[dict[str, object]]:
    sources = {
        "documentation": [(name, text) for name, text in texts.items() if name not in reserved],
        "readme": _read(installation.readmes(), installation.site_packages),
    }
    found = {kind: _passages(named) for kind, named in sources.items()}
    sourced = {passage.whole for of_kind in found.values() for passage in of_kind}
    kept_out = _passages([(name, text) for name, text in texts.items() if name in reserved])
    unseen = [passage for passage in kept_out if passage.whole not in sourced]
    made: list[dict[str, object]] = []
    for kind, count in LEAKED_ITEMS.items():
        made += items(kind, _choose(installation, kind, found[kind], count), SEED)
    return made + items("unseen", _choose(installation, "unseen", unseen, CLEAN_ITEMS), SEED)


@dataclass(frozen=True)
class Passage:
    """The first words of a paragraph of prose, in one line; `text` names the text that holds it."""

    text: str
    context: str
    ending: str

    @property
    def whole(self) -> str:
        """Context and ending together, as in the text."""
        return f"{self.context} {self.ending}"


def _passages(texts: list[tuple[str, str]]) -> list[Passage]:
    return [passage for name, text in texts for passage in passages(name, text)]


def _choose(installation: Installation, kind: str, found: list[Passage], count: int) -> list[Passage]:
    chosen = choose(found, count, SEED)
    if len(chosen) < count // 2:
        folders = f"{installation.stdlib} and {installation.site_packages}"
        raise InputError(
            f"quickstart: this Python's installation ({folders}) gives {len(chosen)} passages of kind `{kind}`, and"
            f" the benchmark needs {count // 2} or more. Its documentation was stripped (some distributions do); use a"
            f" Python from python.org or pyenv."
        )
    return chosen


def _read(paths: list[Path], base: Path) -> list[tuple[str, str]]:
    """Return (path below `base`, text) of the files that are UTF-8; others give no passage and stay in the sources."""
    found: list[tuple[str, str]] = []
    for path in paths:
        try:
            found.append((path.relative_to(base).as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def _write_folder(folder: Path, written: dict[str, bytes]) -> None:
    """Make `folder` hold exactly `written`, touching only files that differ."""
    wanted = {folder / name for name in written}
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in wanted and path.name != STAMP]:
        path.unlink()
    for name, content in written.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            write_atomically(path, content)
    for empty in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not any(empty.iterdir()):
            shutil.rmtree(empty)


def _is_prepared(folder: Path, mark: str) -> bool:
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (OSError, json.JSONDecodeError):
        return False
    return stamp == {"inputs": mark, "outputs": _output_mark(folder)}


def _input_mark(installation: Installation) -> str:
    """Return a digest that changes when any file that is read, or this module, changes."""
    read = [path for _, path in installation.module_sources()] + installation.readmes()
    return digest_bytes(json.dumps([[digest_file(Path(__file__))], [_mark(path) for path in read]]).encode())


def _output_mark(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != STAMP)
    # By names within the folder: a copied or moved root is as well prepared as before.
    return digest_bytes(json.dumps([[str(path.relative_to(folder)), *_mark(path)[1:]] for path in files]).encode())


def _mark(path: Path) -> list[object]:
    status = path.stat()
    return [str(path), status.st_size, status.st_mtime_ns]


CONTEXT_WORDS = 20

ENDING_WORDS = 8

CHOICES = 4

MOST_PER_TEXT = 2

PROSE_SHARE = 0.85
"""Least share of a passage's words that are letters with at most one punctuation mark after them."""

_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*[.,;:)]?")


def passages(name: str, text: str) -> Iterator[Passage]:
    """Yield the passages of one text: the beginning of every paragraph that is long enough and reads as prose."""
    for paragraph in re.split(r"\n\s*\n", text):
        words = paragraph.split()[: CONTEXT_WORDS + ENDING_WORDS]
        plain = sum(1 for word in words if _PLAIN_WORD.fullmatch(word))
        if len(words) == CONTEXT_WORDS + ENDING_WORDS and plain >= PROSE_SHARE * len(words) and _is_sentence(words):
            yield Passage(name, " ".join(words[:CONTEXT_WORDS]), " ".join(words[CONTEXT_WORDS:]))


def choose(found: Iterable[Passage], count: int, seed: int) -> list[Passage]:
    """Return `count` different passages, at most two of one text, in an order that only the seed decides."""
    chosen: list[Passage] = []
    wholes: set[str] = set()
    per_text: Counter[str] = Counter()
    for passage in sorted(found, key=lambda passage: (seed64(seed, "cloze", "choose", passage.whole), passage.text)):
        if len(chosen) == count:
            break
        if passage.whole not in wholes and per_text[passage.text] < MOST_PER_TEXT:
            chosen.append(passage)
            wholes.add(passage.whole)
            per_text[passage.text] += 1
    return chosen


def items(kind: str, chosen: list[Passage], seed: int) -> list[dict[str, Any]]:
    """Return one benchmark item a passage, ids `KIND-000` on; needs four or more passages with different endings."""
    endings = sorted({passage.ending for passage in chosen})
    assert len(endings) >= CHOICES, f"{kind}: {len(endings)} different endings cannot fill {CHOICES} choices"
    made: list[dict[str, Any]] = []
    for number, passage in enumerate(chosen):
        key = f"{kind}-{number:03d}"
        others = sorted(
            (ending for ending in endings if ending != passage.ending),
            key=lambda ending: seed64(seed, "cloze", key, ending),
        )
        answer = seed64(seed, "cloze", "answer", key) % CHOICES
        choices = others[: CHOICES - 1]
        choices.insert(answer, passage.ending)
        made.append(
            {
                "id": key,
                "context": passage.context,
                "choices": choices,
                "answer": answer,
                "match_text": passage.whole,
                "lang": "en",
            }
        )
    return made


def _is_sentence(words: list[str]) -> bool:
    return words[0][:1].isupper() and len({word.lower() for word in words}) >= len(words) // 2


_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def module_text(name: str, source: bytes) -> str | None:
    """Return the docstrings of a module in order, each under its dotted name; None without any.

    A source that this Python cannot parse (another syntax, a wrong encoding) has no docstrings.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Invalid escapes in other people's strings are not our business.
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    sections = [f"{dotted}\n\n{text}" for dotted, text in _docstrings(name, tree)]
    return "\n\n\n".join(sections) + "\n" if sections else None


def module_files(folder: Path, *, recursive: bool = True) -> list[tuple[str, Path]]:
    """Return (dotted name below `folder`, file) of its Python modules without tests, sorted by name."""
    found: list[tuple[str, Path]] = []
    for path in folder.rglob("*.py") if recursive else folder.glob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        if not any(part in ("tests", "test", "testing") or part.startswith("test_") for part in parts):
            found.append((".".join(part for part in parts if part != "__init__"), path))
    return sorted(found)


def help_topics() -> dict[str, str]:
    """Return the pages of the language reference behind `help("TOPIC")`, by topic; several topics share one page."""
    from pydoc_data.topics import topics

    pages: dict[str, str] = {}
    for topic, text in sorted(topics.items()):
        if text not in pages.values():
            pages[topic] = text
    return pages


def _docstrings(dotted: str, node: _Documented) -> Iterator[tuple[str, str]]:
    text = ast.get_docstring(node)
    if text and text.strip():
        yield dotted, text.strip()
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(f"{dotted}.{child.name}", child)
