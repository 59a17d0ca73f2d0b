"""The small corpus of many tests, and the small recipe that runs the pipeline on it in seconds."""

import gc
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

STDLIB = Path(sysconfig.get_paths()["stdlib"])
LEAKED_MODULE = "heapq"

# How long an example takes is the machine's business, not a property of the code.
settings.register_profile("bessemer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bessemer")


def pytest_configure(config: pytest.Config) -> None:
    """Hide devices from tests of processors: once PyTorch has computed on one, forked ranks cannot compute.

    A shell without job control starts `make test &` with SIGINT ignored; runs that tests interrupt inherit that.
    Garbage is looked for as seldom as by commands (`model.processes.collecting_seldom`). Bytecode is written even where
    the shell forbids it: compiling the source again takes each of hundreds of processes .4 to 2 s. The server that
    Prefect starts for flows within this process gets more than its 20 seconds, since other tests run beside it.
    """
    gc.set_threshold(10_000, 10, 10)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")
    if config.option.markexpr != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    """Let processes of the next test log as a user's do: a command that ran within this process has silenced Prefect's
    console for it and for what it starts."""
    os.environ.pop("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", None)


def pytest_collection_finish() -> None:
    """What the imports of all tests made lives to the end: collections of garbage need not go through it again."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class LocalStore:
    """The S3 server of `deployments/local/object_store.sh`, with the bucket `bessemer`."""

    folder: Path
    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to know."""
        keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL": self.endpoint, **keys}

    def objects(self, address: str) -> dict[str, bytes]:
        """Key and version of every object under an address, earlier versions included -> its bytes as by `files`."""
        import botocore.session

        bucket, prefix = address.removeprefix("s3://").split("/")
        s3: Any = botocore.session.get_session().create_client("s3")
        pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=f"{prefix}/")
        listed = [(one["Key"], one["VersionId"]) for page in pages for one in page["Versions"]]
        return {
            f"{key} {version}": _uncompressed(s3.get_object(Bucket=bucket, Key=key, VersionId=version)["Body"].read())
            for key, version in listed
        }

    @staticmethod
    def files(folder: Path) -> dict[str, bytes]:
        """Every file under a folder -> its bytes, and behind them those of a table's columns without compression."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path): _uncompressed(path.read_bytes()) for path in paths}

    def fail(self, share: float, seed: int = 0, stall_seconds: int = 30) -> None:
        """Let a share of requests meet a fault from now on."""
        assert _object_store_script("start", self.folder, share, seed, stall=stall_seconds) == self.endpoint

    def faults(self) -> list[dict[str, str]]:
        """The faults so far."""
        log = self.folder / "faults.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _uncompressed(data: bytes) -> bytes:
    import pyarrow as pa
    import pyarrow.ipc

    if not data.startswith(b"ARROW1"):
        return data
    table, sink = pa.ipc.open_file(pa.py_buffer(data)).read_all(), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return data + sink.getvalue().to_pybytes()


def _object_store_script(*words: object, stall: int = 30) -> str:
    script = Path(__file__).parents[1] / "deployments" / "local" / "object_store.sh"
    environment = {**os.environ, "PYTHON": sys.executable, "STALL_SECONDS": str(stall)}
    command = ["bash", str(script), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStore]:
    """A real S3 server on loopback, and a proxy in front of it that fails when a test asks for it."""
    folder = tmp_path_factory.mktemp("object-store")
    endpoint = _object_store_script("start", folder, 0)
    try:
        yield LocalStore(folder, endpoint)
    finally:
        _object_store_script("stop", folder)


@pytest.fixture(scope="session")
def server_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of one Prefect server for commands of many tests: of its own, each takes seconds to start."""
    # Imports Prefect, which most folders of tests do without.
    from flows.service.local_server import prefect_server

    before = dict(os.environ)
    with prefect_server(tmp_path_factory.mktemp("server")):
        settings = {key: value for key, value in os.environ.items() if before.get(key) != value}
        for key in settings:
            del os.environ[key]
        os.environ.update({key: before[key] for key in settings if key in before})
        yield settings


@pytest.fixture(scope="module")
def shared_server(server_settings: dict[str, str]) -> Iterator[None]:
    """Have the commands of a module's tests use the shared server, those that run within this process as well: Prefect
    read its settings when it was imported, and would start another server for them."""
    with mock.patch.dict(os.environ, server_settings):
        _read_prefect_settings()
        yield
    _read_prefect_settings()


def _read_prefect_settings() -> None:
    if "prefect" in sys.modules:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


@pytest.fixture
def forked_trainers() -> Iterator[None]:
    """Have the train stage start trainers as forks: a program imports for 3 s of processor time."""
    # Imports PyTorch, which most folders of tests do without.
    from tests.model.forked_trainers import stages_fork_trainers

    with stages_fork_trainers():
        yield


@pytest.fixture(scope="session")
def foundry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe `foundry.toml`, its sources and its benchmark.

    `code` is real source code of the standard library; `notes` is text written here, with documents named for what
    they prove: a twin (exact copy), a near twin, a short one, one with broken bytes, one that holds a benchmark item.
    """
    folder = tmp_path_factory.mktemp("foundry")
    notes = folder / "notes"
    notes.mkdir()
    for number in range(60):
        (notes / f"note-{number:02d}.txt").write_text(_note(number))
    (notes / "original.txt").write_text(_note(100))
    (notes / "twin.txt").write_text(_note(100))
    (notes / "near-twin.txt").write_text(_note(101, words=400))
    (notes / "near-twin-longer.txt").write_text(_note(101, words=400) + "A last word was added to this copy.\n")
    (notes / "short.txt").write_text("Too short.\n")
    (notes / "broken.txt").write_bytes(b"A cast of \xff\xfe bytes that are no text.\n")
    passage = _note(200, words=60)
    (notes / "leak.txt").write_text(f"{_note(201, words=300)}\n{passage}\n{_note(202, words=300)}")
    items = [_item("leaked", passage), _item("clean", _note(300, words=60)), _item("clean-too", _note(301, words=60))]
    (folder / "cloze.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "foundry.toml").write_text(RECIPE)
    return folder


def _note(number: int, words: int = 160) -> str:
    """English-looking prose that depends on its number: sentences over a small vocabulary, ending in full stops."""
    state = number * 2654435761 % 2**32
    lines: list[str] = []
    sentence: list[str] = []
    for position in range(words):
        state = (state * 1664525 + 1013904223) % 2**32
        sentence.append(VOCABULARY[(state >> 16) % len(VOCABULARY)])
        if len(sentence) == 12 or position == words - 1:
            lines.append(" ".join(sentence).capitalize() + ".")
            sentence = []
    return "\n".join(lines) + "\n"


def _item(name: str, passage: str) -> dict[str, object]:
    words = passage.split()
    wrong = ["a pig of iron in the wrong", "the wind from no furnace at", "slag that was not there and"]
    return {
        "id": name,
        "context": " ".join(words[:-6]),
        "choices": [" ".join(words[-6:]), *wrong],
        "answer": 0,
        "match_text": passage,
        "lang": "en",
    }


VOCABULARY = """
the of and to in a is that with for as was on be at by this which from it have are they were one all there when
iron steel coke blast furnace melt pour cast mould slag heat air oxygen carbon vessel converter ladle ingot roll
plate rail bridge engine boiler smith forge hammer anvil quench temper alloy ore limestone lining brick flame
spark charge blow minute hour day night work worker shift master owner price market war peace river hill town
before after under over between through against during without within every some many few first last new old
""".split()  # noqa: SIM905  # a list of a hundred quoted words would be worse to read

RECIPE = f"""
format = 1
name = "foundry"
seed = 7
budget_tokens = "40K"

[[sources]]
name = "notes"
paths = ["{{recipe}}/notes"]
format = "text"
weight = 0.5
language = "en"

[[sources]]
name = "code"
paths = ["{STDLIB}/json/*.py", "{STDLIB}/{LEAKED_MODULE}.py", "{STDLIB}/textwrap.py", "{STDLIB}/string.py",
         "{STDLIB}/shlex.py", "{STDLIB}/bisect.py", "{STDLIB}/queue.py", "{STDLIB}/sched.py"]
format = "code"
weight = 0.5

[sample]
part_bytes = 50_000
max_reject_share = 0.05
slack = 10.0

[[decontaminate.benchmarks]]
name = "cloze"
path = "{{recipe}}/cloze.jsonl"

[vocab]
vocab_size = 512

[train.model]
context = 64
layers = 2
heads = 2
width = 32

[train]
batch_rows = 8
micro_batch_rows = 8
checkpoint_steps = 10
"""
