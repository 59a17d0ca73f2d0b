"""Sources by URI: S3 against moto's server, the web against a server of the standard library, hf through its scheme."""

import gzip
import http.server
import json
import os
import socket
import sys
import threading
from pathlib import Path

import boto3
import botocore.exceptions
import fsspec
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
import zstandard
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub.errors import HfHubHTTPError

from model.errors import AccessError, Infra, InputError, RecipeError
from tasks.artifacts.build import ProgressListener, RunContext
from tasks.artifacts.remote import retries
from tasks.common.digests import InputDigests
from tasks.sample import sampler as sampling
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import find_files
from tasks.sample.readers.files import read_records
from tasks.sample.remote import RemoteFile, list_remote
from tasks.sample.stage import build_sample


def config(*paths, **fields):
    return SampleConfig(sources=(Source(name="s", paths=paths, weight=1, **fields),), budget_tokens=10**6)


def texts(*paths, **fields):
    (listing,) = find_files(config(*paths, **fields))
    return [found.text for file in listing.files for found in read_records(file, listing.source, 0, lambda count: None)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A folder of every kind of container."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "deep").mkdir()
    lines = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(1000)).encode()
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(lines))
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"packed words"))
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(500)]}), folder / "deep" / "c.parquet")
    (folder / "deep" / "d.md").write_text("# words")
    (folder / ".hidden").write_text("not seen")
    (folder / "e.png").write_bytes(b"no text")
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def s3(corpus, object_store):
    """A real S3 server process on loopback, which holds the corpus in the bucket `corpus`."""
    before = {key: os.environ.get(key) for key in object_store.environment}
    os.environ.update(object_store.environment)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        client = boto3.client("s3")
        client.create_bucket(Bucket="corpus")
        for path in sorted(corpus.rglob("*")):
            if path.is_file():
                client.upload_file(str(path), "corpus", f"text/{path.relative_to(corpus).as_posix()}")
        yield client
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_folder_on_s3_reads_like_the_same_folder_here(s3, corpus):
    assert texts("s3://corpus/text") == texts(str(corpus))
    (there,), (here,) = find_files(config("s3://corpus/text/")), find_files(config(str(corpus)))
    assert [(file.relative, file.format, file.size) for file in there.files] == [
        (file.relative, file.format, file.size) for file in here.files
    ]
    assert there.skipped == here.skipped == {"of another format": 1}


def test_patterns_and_single_files_on_s3(s3, corpus):
    assert texts("s3://corpus/text/**/*.md") == ["# words"]
    assert texts("s3://corpus/text/b.txt.gz") == ["packed words"]
    assert len(texts("s3://corpus/text/*.zst", "s3://corpus/text/deep/c.parquet")) == 1500


def test_what_was_built_from_here_is_reused_from_s3(s3, corpus, tmp_path):
    context = RunContext(tmp_path / "root", "run")
    here = build_sample(context, config(str(corpus)))
    there = build_sample(context, config("s3://corpus/text"))
    assert (there.reused, there.identity) == (True, here.identity)


def test_a_changed_object_is_another_input(s3, tmp_path):
    context = RunContext(tmp_path / "root", "run")
    s3.put_object(Bucket="corpus", Key="changing/a.txt", Body=b"first")
    build_sample(context, config("s3://corpus/changing"))
    s3.put_object(Bucket="corpus", Key="changing/a.txt", Body=b"other")
    changed = build_sample(context, config("s3://corpus/changing"))
    assert not changed.reused
    assert texts("s3://corpus/changing") == ["other"]


@pytest.mark.parametrize("uri", ["s3://corpus/gone.txt", "s3://corpus/gone/*.txt", "s3://nobody/a.txt"])
def test_what_is_not_on_s3_is_an_input_error(s3, uri):
    with pytest.raises(InputError, match=r"Correct the address|no file matches"):
        find_files(config(uri))


def test_a_store_that_does_not_answer_is_infrastructure(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr(retries, "TRIES", 2)
    with pytest.raises(Infra, match="s3://corpus failed 2 times"):
        find_files(config("s3://corpus/text/a.jsonl.zst"))
    s3fs.S3FileSystem.clear_instance_cache()


def test_without_credentials_the_error_says_so(s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(AccessError, match=r"s3://corpus refuses access: listing source `s`.*credentials"):
        find_files(config("s3://corpus/text/a.jsonl.zst"))
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def web(corpus):
    """A web server on loopback with the corpus; `/torn.txt` breaks off in the middle."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(corpus))

        def do_GET(self):
            if self.path != "/torn.txt":
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b"a few words")
            return None

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_files_of_the_web_are_read(web, corpus):
    assert texts(f"{web}/deep/d.md") == ["# words"]
    assert texts(f"{web}/a.jsonl.zst") == texts(str(corpus / "a.jsonl.zst"))
    assert texts(f"{web}/deep/c.parquet") == texts(str(corpus / "deep" / "c.parquet"))


def test_an_index_page_of_the_web_is_a_folder(web):
    assert texts(f"{web}/deep/", format="markdown") == ["# words"]
    assert texts(f"{web}/*.gz") == ["packed words"]


def test_a_page_that_is_not_there_is_an_input_error(web):
    with pytest.raises(InputError, match="it does not exist"):
        find_files(config(f"{web}/gone.txt"))


def test_an_answer_that_breaks_off_is_infrastructure_and_no_document(web, monkeypatch):
    monkeypatch.setattr(retries, "TRIES", 3)
    with pytest.raises(Infra, match=f"{web} failed 3 times in . s: reading {web}/torn.txt"):
        texts(f"{web}/torn.txt")


class LocalHub(LocalFileSystem):
    """In place of hf://: files of this machine behind the scheme."""

    protocol = "hf"
    root = ""

    @classmethod
    def _strip_protocol(cls, path):
        path = path.removeprefix("hf://")
        return path if path.startswith(cls.root) else f"{cls.root}/{path}"


def test_hf_goes_the_same_way(corpus, monkeypatch):
    monkeypatch.setattr(LocalHub, "root", str(corpus.parent))
    fsspec.register_implementation("hf", LocalHub, clobber=True)
    try:
        assert texts(f"hf://{corpus.name}") == texts(str(corpus))
        assert texts(f"hf://{corpus.name}/deep/*.md") == ["# words"]
        assert [name for name, _, _ in list_remote("s", f"hf://{corpus.name}/deep")[1]] == ["c.parquet", "d.md"]
    finally:
        sys.modules["fsspec.registry"]._registry.pop("hf")


def test_a_missing_package_is_named():
    with pytest.raises(RecipeError, match="needs the package `gcsfs`, which is not installed: pip install gcsfs"):
        find_files(config("gs://bucket/a.txt"))


def test_a_marked_stream_is_hashed_once(tmp_path):
    (tmp_path / "a").write_bytes(b"words")
    opened = []

    def open_stream():
        opened.append(1)
        return (tmp_path / "a").open("rb")

    for mark, times in (("v1", 1), ("v1", 1), ("v2", 2), (None, 3), (None, 4)):
        digests = InputDigests(tmp_path / "inputs.json")
        assert digests.content_of_stream("s3://b/a", mark, open_stream) == digests.content(tmp_path / "a")
        digests.save()
        assert len(opened) == times


def test_names_of_remote_files_say_their_format():
    assert RemoteFile("https://a.example/data/x.jsonl.gz?download=1", None).name == "x.jsonl.gz"


class FakeClock:
    """In place of the module `time` where pauses are made: they pass at once."""

    def __init__(self):
        self.now, self.pauses = 1_000_000.0, []

    def monotonic(self):
        return self.now

    time = monotonic

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    fake = FakeClock()
    monkeypatch.setattr(retries, "time", fake)
    return fake


WORDS = "".join(f"{number} words of a page that is read whole.\n" for number in range(200_000)).encode()


@pytest.fixture
def busy(clock):
    """A web server with one page, `/page.txt`, that answers `status` until `until`, and before then cuts the page off
    once it was asked for."""

    class Handler(http.server.BaseHTTPRequestHandler):
        status, headers_told, until, cut_after, requests = 503, {}, 0.0, None, 0
        etag, ranges = '"one"', True

        def do_HEAD(self):
            self.answer(with_body=False)

        def do_GET(self):
            self.answer(with_body=True)

        def answer(self, with_body):
            Handler.requests += 1
            if clock.now < Handler.until:
                self.send_response(Handler.status)
                for name, value in Handler.headers_told.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            begin = int(self.headers.get("Range", "bytes=0-")[6:-1]) if Handler.ranges else 0
            self.send_response(206 if begin else 200)
            self.send_header("ETag", Handler.etag)
            self.send_header("Content-Length", str(len(WORDS) - begin))
            self.end_headers()
            if with_body and Handler.cut_after is not None:
                end, Handler.cut_after = Handler.cut_after, None
                Handler.until = clock.now + 600
                self.wfile.write(WORDS[begin:end])
                self.close_connection = True
            elif with_body:
                self.wfile.write(WORDS[begin:])

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Handler.address = f"http://127.0.0.1:{server.server_port}"
    yield Handler
    server.shutdown()
    thread.join()
    server.server_close()


class Heard(ProgressListener):
    def __init__(self):
        self.notes = []

    def note(self, stage, sentence):
        self.notes.append(f"{stage}: {sentence}")


def whole_page(root, address):
    heard = Heard()
    built = build_sample(RunContext(root, "run", listener=heard), config(f"{address}/page.txt"))
    assert "".join(built.table("documents").column("text").to_pylist()).encode() == WORDS
    return [note for note in heard.notes if "waiting" in note]


@pytest.mark.parametrize(
    ("status", "headers", "longest"),
    [
        (503, {}, retries.LONGEST_PAUSE),
        (503, {"Retry-After": "120"}, 120),
        (429, {"Retry-After": "Thu, 15 Jan 1970 13:56:40 GMT"}, 300),  # the fake clock's hour, and 200 s
        (503, {"Retry-After": "86400"}, 300),
        (502, {"Retry-After": "soon"}, retries.LONGEST_PAUSE),
        (500, {"Retry-After": "-5"}, retries.LONGEST_PAUSE),
    ],
)
def test_a_server_that_is_busy_for_ten_minutes_costs_waiting(busy, clock, tmp_path, status, headers, longest):
    began = clock.now
    busy.status, busy.headers_told, busy.until = status, headers, began + 600
    waits = whole_page(tmp_path, busy.address)
    assert 600 <= clock.now - began <= retries.MAX_WAIT_SECONDS
    assert max(clock.pauses) <= longest
    assert waits[0].startswith(f"sample: waiting: listing source `s`, {busy.address}/page.txt (")
    assert str(status) in waits[0]
    assert len(waits) <= 12, "a sentence a minute"
    if longest > retries.LONGEST_PAUSE:
        assert len(clock.pauses) <= 600 / 120 + 3, "asked no sooner than it said"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_page_that_is_cut_off_by_ten_minutes_of_trouble_is_read_on(busy, clock, tmp_path, ranges):
    busy.ranges = ranges
    waits = []
    for cut in (len(WORDS) // 2, len(WORDS) // 3):
        busy.cut_after = cut
        waits = whole_page(tmp_path / str(cut), busy.address)
    assert waits[0].startswith(f"sample: waiting: reading {busy.address}/page.txt (")
    assert clock.now - 1_000_000 >= 1200


def test_a_page_that_changes_while_it_is_read_is_never_half_of_each(busy, clock, monkeypatch):
    (listing,) = find_files(config(f"{busy.address}/page.txt"))
    with listing.files[0].open() as stream:
        busy.cut_after = None
        stream.read(1000)
        stream.raw._drop()
        busy.etag = '"two"'
        with pytest.raises(InputError, match=r"page\.txt was changed .*the server now has another version"):
            stream.read()


def test_a_page_replaced_between_the_list_and_the_reading_is_not_taken_for_the_one_listed(busy, tmp_path):
    (listing,) = find_files(config(f"{busy.address}/page.txt"))
    busy.etag = '"two"'
    with pytest.raises(InputError, match=r"page\.txt was changed .*listed with ETag=.one."):
        build_sample(RunContext(tmp_path, "run"), config(f"{busy.address}/page.txt"), [listing])
    assert not list(tmp_path.glob("inputs.json"))


def test_a_page_replaced_between_its_digest_and_the_reading_is_an_error(busy, tmp_path, monkeypatch):
    whole = sampling.plan_mixture

    def replaced(*given):
        monkeypatch.setattr(sys.modules[__name__], "WORDS", WORDS.replace(b"words", b"Words"))
        return whole(*given)

    monkeypatch.setattr(sampling, "plan_mixture", replaced)
    with pytest.raises(InputError, match=r"page\.txt was changed .*had the digest"):
        build_sample(RunContext(tmp_path, "run"), config(f"{busy.address}/page.txt"))
    assert not list(tmp_path.glob("artifacts/*/*"))
    monkeypatch.setattr(sampling, "plan_mixture", whole)
    whole_page(tmp_path, busy.address)  # By the same ETag: what is known of it was forgotten.


def test_an_object_replaced_between_its_digest_and_the_reading_is_an_error(s3, tmp_path, monkeypatch):
    whole = sampling.plan_mixture

    def replaced(*given):
        s3.put_object(Bucket="corpus", Key="changing/a.txt", Body=b"others")
        return whole(*given)

    s3.put_object(Bucket="corpus", Key="changing/a.txt", Body=b"words!")
    monkeypatch.setattr(sampling, "plan_mixture", replaced)
    with pytest.raises(InputError, match=r"corpus/changing/a\.txt was changed"):
        build_sample(RunContext(tmp_path, "run"), config("s3://corpus/changing"))
    assert not list(tmp_path.glob("artifacts/*/*"))


def test_after_the_last_attempt_the_message_promises_no_other(busy, clock, tmp_path):
    busy.until = float("inf")
    began = clock.now
    with pytest.raises(Infra) as refused:
        whole_page(tmp_path, busy.address)
    assert retries.MAX_WAIT_SECONDS <= clock.now - began < retries.MAX_WAIT_SECONDS + 2 * retries.LONGEST_PAUSE
    assert "run again to continue" in str(refused.value)
    assert not any(words in str(refused.value) for words in ("tried again", "retr", "asked again", "next attempt"))


def test_a_connection_that_breaks_behind_a_long_wait_is_tried_again(clock):
    """A server that was down for minutes and drops the first connection when it comes back."""
    began = clock.now

    def request():
        if clock.now < began + 300:
            raise ConnectionRefusedError(111, "refused")
        if len(broken) < retries.TRIES - 1:
            broken.append(clock.now)
            raise OSError("the answer broke off")
        return "answer"

    broken: list[float] = []
    with retries.report_waits(lambda sentence: None):
        assert retries.with_retries("reading", request) == "answer"


def test_a_question_does_not_wait_for_a_busy_server(busy, clock):
    busy.until = float("inf")
    with pytest.raises(Infra, match=f"failed {retries.TRIES} times"):
        find_files(config(f"{busy.address}/page.txt"))
    assert len(clock.pauses) == retries.TRIES - 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_page_for_others_is_refused_at_once(busy, clock, tmp_path, status):
    busy.status, busy.until = status, float("inf")
    with pytest.raises(AccessError, match=f"refuses access: listing source `s`.*{status}"):
        whole_page(tmp_path, busy.address)
    assert clock.pauses == []


def slow_down():
    """As s3fs raises it: its own error, and that of botocore behind it."""
    headers = {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "60"}}
    reported = botocore.exceptions.ClientError(
        {"Error": {"Code": "SlowDown"}, "ResponseMetadata": headers}, "GetObject"
    )
    return s3fs.errors.translate_boto_error(reported)


def too_many_requests():
    """As the hub's client raises it."""
    request = httpx.Request("GET", "https://huggingface.co/x")
    answer = httpx.Response(429, headers={"Retry-After": "60"}, request=request)
    return HfHubHTTPError("429 Client Error: Too Many Requests", response=answer)


@pytest.mark.parametrize("trouble", [slow_down, too_many_requests, lambda: ConnectionResetError(104, "reset by peer")])
def test_s3_and_the_hub_are_waited_for_as_well(corpus, clock, monkeypatch, tmp_path, trouble):
    ends = clock.now + 600

    class Troubled(LocalHub):
        def info(self, path, **more):
            self.check()
            return super().info(path, **more)

        def _open(self, path, *words, **more):
            self.check()
            return super()._open(path, *words, **more)

        def check(self):
            if clock.now < ends:
                raise trouble()

    monkeypatch.setattr(LocalHub, "root", str(corpus.parent))
    fsspec.register_implementation("hf", Troubled, clobber=True)
    try:
        heard = Heard()
        context = RunContext(tmp_path, "run", listener=heard)
        built = build_sample(context, config(f"hf://{corpus.name}/deep/d.md"))
    finally:
        sys.modules["fsspec.registry"]._registry.pop("hf")
    assert built.table("documents").column("text").to_pylist() == ["# words"]
    assert [note for note in heard.notes if "waiting" in note]
    assert clock.now >= ends


def test_an_unknown_host_name_is_not_waited_for(clock, tmp_path):
    with pytest.raises(Infra, match=f"failed {retries.TRIES} times"):
        whole_page(tmp_path, "http://no-such-host.invalid")
