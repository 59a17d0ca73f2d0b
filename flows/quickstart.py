"""The input of the demo: real, messy text that every machine with Python has, and a cloze benchmark made from it.

Most sources of `recipes/quickstart.toml` are read where they lie: READMEs and licences of installed packages, source
code, notes. Two things are written beforehand under `ROOT/inputs/quickstart`:

    documentation/   docstrings of the standard library and of large packages, and the pages of `help()`: a text each
    cloze.jsonl      passages of documentation, READMEs and licences, which stay in the sources (true leaks that the
                     run must find and cut), and passages of documentation that is kept out of the sources (clean)

The same installation gives the same bytes, and nothing is written that stands already; an unchanged installation is
recognised by names, sizes and times without reading it.
"""

import json
import shutil
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flows.cloze import Passage, choose, items, passages
from flows.docstrings import help_topics, module_files, module_text
from model.durable import write_atomically
from model.errors import InputError
from model.reading import digest_bytes, digest_file
from tasks.seed import seed64

SEED = 1
DOCUMENTED_PACKAGES = ("numpy", "networkx", "sqlalchemy", "fsspec", "prefect", "pyarrow", "torch/nn")
"""Packages beside the standard library whose docstrings become documentation, by their folder in site-packages."""
RESERVED_SHARE = 6
"""One text in so many of the documentation is kept out of the sources, for clean items."""
LEAKED_ITEMS = {"documentation": 120, "readme": 50, "licence": 30}
CLEAN_ITEMS = 120

FOLDER = Path("inputs/quickstart")
STAMP = "stamp.json"
CLOZE = "cloze.jsonl"


@dataclass(frozen=True)
class Installation:
    """Where this Python keeps its standard library and its packages."""

    stdlib: Path
    site_packages: Path
    documented: tuple[str, ...] = DOCUMENTED_PACKAGES

    @staticmethod
    def current() -> "Installation":
        """The one that runs this program."""
        paths = sysconfig.get_paths()
        return Installation(Path(paths["stdlib"]), Path(paths["purelib"]))

    def module_sources(self) -> list[tuple[str, Path]]:
        """(name, file) of every module whose docstrings are documentation."""
        found = [(f"python/{name}", path) for name, path in module_files(self.stdlib, recursive=False)]
        for package in self.documented:
            folder = self.site_packages / package
            prefix = package.replace("/", ".")
            top = package.partition("/")[0]
            found += [(f"{top}/{prefix}.{name}".rstrip("."), path) for name, path in module_files(folder)]
        return found

    def readmes(self) -> list[Path]:
        """The METADATA of installed packages, which ends in their README."""
        return _of_others(self.site_packages.glob("*.dist-info/METADATA"))

    def licences(self) -> list[Path]:
        """Licence files of installed packages."""
        folders = ("*.dist-info/LICENSE*", "*.dist-info/licenses/**/LICENSE*")
        return _of_others(path for pattern in folders for path in self.site_packages.glob(pattern) if path.is_file())


def prepare(root: Path, installation: Installation | None = None) -> Path:
    """Write the demo's input under `root` and return its folder; quick when nothing changed since last time.

    Raises InputError where this Python comes without enough documentation to make the benchmark from.
    """
    installation = installation or Installation.current()
    folder = root / FOLDER
    mark = _input_mark(installation)
    if _is_prepared(folder, mark):
        return folder
    texts = _documentation(installation)
    reserved = {name for name in texts if _is_reserved(name)}
    sourced = {name: text for name, text in texts.items() if name not in reserved}
    written = {f"documentation/{name}.txt": text.encode() for name, text in sourced.items()}
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


def _is_reserved(name: str) -> bool:
    return seed64(SEED, "quickstart", "reserve", name) % RESERVED_SHARE == 0


def _benchmark(installation: Installation, texts: dict[str, str], reserved: set[str]) -> list[dict[str, object]]:
    sources = {
        "documentation": [(name, text) for name, text in texts.items() if name not in reserved],
        "readme": _read(installation.readmes(), installation.site_packages),
        "licence": _read(installation.licences(), installation.site_packages),
    }
    found = {kind: _passages(named) for kind, named in sources.items()}
    sourced = {passage.whole for of_kind in found.values() for passage in of_kind}
    kept_out = _passages([(name, text) for name, text in texts.items() if name in reserved])
    unseen = [passage for passage in kept_out if passage.whole not in sourced]
    made: list[dict[str, object]] = []
    for kind, count in LEAKED_ITEMS.items():
        made += items(kind, _choose(kind, found[kind], count), SEED)
    return made + items("unseen", _choose("unseen", unseen, CLEAN_ITEMS), SEED)


def _passages(texts: list[tuple[str, str]]) -> list[Passage]:
    return [passage for name, text in texts for passage in passages(name, text)]


def _choose(kind: str, found: list[Passage], count: int) -> list[Passage]:
    chosen = choose(found, count, SEED)
    if len(chosen) < count // 2:
        raise InputError(
            f"quickstart: this Python's installation gives {len(chosen)} passages of kind `{kind}`, and the benchmark"
            f" needs {count // 2} or more. Its documentation was stripped (some distributions do); use a Python from"
            f" python.org or pyenv."
        )
    return chosen


def _read(paths: list[Path], base: Path) -> list[tuple[str, str]]:
    """Texts by their path below `base`; what is not UTF-8 gives no passage and stays in the sources as it is."""
    found: list[tuple[str, str]] = []
    for path in paths:
        try:
            found.append((path.relative_to(base).as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def _of_others(paths: Iterable[Path]) -> list[Path]:
    """Without this project's own metadata, which changes with every commit."""
    return sorted(path for path in paths if not any(part.startswith("bessemer-") for part in path.parts))


def _write_folder(folder: Path, written: dict[str, bytes]) -> None:
    """Make `folder` hold exactly `written`, touching only files that differ."""
    wanted = {folder / name for name in written}
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in wanted and path.name != STAMP]:
        path.unlink()
    for name, content in written.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
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
    """Changes when any file that is read, or the code that reads, does."""
    read = [path for _, path in installation.module_sources()] + installation.readmes() + installation.licences()
    code = [digest_file(Path(__file__).with_name(name)) for name in ("quickstart.py", "cloze.py", "docstrings.py")]
    return digest_bytes(json.dumps([code, [_mark(path) for path in read]]).encode())


def _output_mark(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != STAMP)
    # By names within the folder: a copied or moved root is as well prepared as before.
    return digest_bytes(json.dumps([[str(path.relative_to(folder)), *_mark(path)[1:]] for path in files]).encode())


def _mark(path: Path) -> list[object]:
    status = path.stat()
    return [str(path), status.st_size, status.st_mtime_ns]
