"""Sources by `gs://`, against a storage server on loopback; needs `pip install gcsfs gcp-storage-emulator`."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from model.errors import InputError
from tasks.artifacts.build import RunContext
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import find_files
from tasks.sample.readers.files import read_records
from tasks.sample.stage import build_sample

gcsfs = pytest.importorskip("gcsfs", reason="gcsfs brings 20 packages and is not in the lock file")
emulator = pytest.importorskip("gcp_storage_emulator.server", reason="no Google Cloud Storage server to test against")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A storage server in memory with 1,000 lines of JSON in `corpus/text/a.jsonl.gz` and two words below."""
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="corpus")
    server.start()
    host, port = server._api._httpd.socket.getsockname()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{host}:{port}")
    # Asking what kind of bucket it is would go to Google by gRPC and wait a minute.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    gcsfs.GCSFileSystem.clear_instance_cache()
    store = gcsfs.GCSFileSystem()
    lines = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(1000))
    store.pipe("corpus/text/a.jsonl.gz", gzip.compress(lines.encode()))
    store.pipe("corpus/text/deep/b.md", b"# words")
    yield store
    gcsfs.GCSFileSystem.clear_instance_cache()
    server.stop()


def config(path: str) -> SampleConfig:
    return SampleConfig(sources=(Source(name="s", paths=(path,), weight=1),), budget_tokens=10**6)


def texts(path: str) -> list[str]:
    (listing,) = find_files(config(path))
    records = (read_records(file, listing.source, 0, lambda count: None) for file in listing.files)
    return [record.text for of_file in records for record in of_file]  # pyright: ignore[reportAttributeAccessIssue]


def test_folders_patterns_and_files_are_read(bucket: Any) -> None:
    assert len(texts("gs://corpus/text")) == 1001
    assert texts("gs://corpus/text/**/*.md") == ["# words"]
    assert texts("gs://corpus/text/deep/b.md") == ["# words"]
    assert texts("gs://corpus/text/*.gz")[999] == "line 999"


def test_a_changed_object_is_another_input(bucket: Any, tmp_path: Any) -> None:
    context = RunContext(tmp_path / "root", "run")
    build_sample(context, config("gs://corpus/text/deep"))
    assert build_sample(context, config("gs://corpus/text/deep")).reused
    bucket.pipe("corpus/text/deep/b.md", b"# other words")
    assert not build_sample(context, config("gs://corpus/text/deep")).reused
    assert texts("gs://corpus/text/deep") == ["# other words"]


def test_what_is_not_there_is_an_input_error(bucket: Any) -> None:
    with pytest.raises(InputError, match="it does not exist"):
        find_files(config("gs://corpus/gone.txt"))
