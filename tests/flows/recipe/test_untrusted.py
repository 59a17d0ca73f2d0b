"""A recipe of somebody else's reads one folder and public addresses, and runs no code."""

import http.server
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, Field
from typer.main import get_command

from flows.cli import app
from flows.nightly.config import read_notify
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from model.config import Reach
from model.errors import RecipeError
from tasks.common import confinement
from tasks.common.config import StrictConfig
from tasks.sample.config import SampleConfig, Source
from tasks.sample.discovery import find_files
from tests.command import invoke

WORDS = frozenset(
    """
    name sample.sources.name sample.sources.language sample.sources.licence sample.sources.text_field
    sample.sources.id_field sample.sources.url_field sample.sources.encoding sample.sources.thread.thread_field
    sample.sources.thread.id_field sample.sources.thread.reply_field sample.sources.thread.author_field
    sample.sources.exclude sample.sources.only sample.tokens_per_byte clean.presets clean.kinds clean.edits clean.rules
    chunk.read_last clean.limits clean.add clean.without clean.extensions.edits clean.extensions.rules clean.languages
    clean.deny.domains clean.deny.ids clean.deny.hashes clean.word_lists.name clean.classifiers.name
    clean.classifiers.good clean.classifiers.bad clean.classifiers.label clean.spelling.language
    clean.quality.good clean.wipe_out_overrides dedup.priorities dedup.wipe_out_overrides
    decontaminate.benchmarks.name decontaminate.benchmarks.adapter decontaminate.benchmarks.fields.id
    decontaminate.benchmarks.fields.context decontaminate.benchmarks.fields.choices
    decontaminate.benchmarks.fields.continuation decontaminate.benchmarks.fields.answer
    decontaminate.benchmarks.fields.match_text decontaminate.benchmarks.fields.lang
    decontaminate.benchmarks.fields.template decontaminate.benchmarks.fields.words
    decontaminate.benchmarks.fields.labels decontaminate.benchmarks.fields.no_answer
    decontaminate.benchmarks.fields.only decontaminate.benchmarks.fields.each
    decontaminate.benchmarks.fields.columns vocab.special_tokens vocab.weights chunk.weights evaluate.benchmarks
    evaluate.benchmarks.instruction evaluate.benchmarks.answer_prompt evaluate.benchmarks.stop
    evaluate.benchmarks.target evaluate.instruction evaluate.gate.sources evaluate.prompts train.clip.early_share
    train.batch_warmup.share train.length_warmup.share train.schedule.warmup_share train.schedule.end_share
    train.schedule.steps train.schedule.decay_share train.phases.share train.phases.weights chunk.phases.weights
    chunk.tombstones.source chunk.tombstones.key sample.exclude_documents
    """.split()  # noqa: SIM905  # a list of quoted words would be worse to read
)

"""Keys that take any text and reach nothing by it: names, patterns of relative paths, fields of records, prompts. Of a
new key somebody decides here, or marks it with what it reaches."""

OUTSIDE = {
    "sample.sources.paths": 'paths = ["{outside}"]',
    "clean.extensions.path": '[clean.extensions]\npath = "{recipe}"\nedits = ["own:edit"]',
    "clean.deny.path": '[clean.deny]\npath = "{outside}"',
    "clean.word_lists.path": '[[clean.word_lists]]\nname = "x"\npath = "{outside}"',
    "clean.classifiers.path": '[[clean.classifiers]]\nname = "x"\nlabel = "l"\nlimit = 0.5\npath = "{outside}"',
    "clean.classifiers.labels": '[[clean.classifiers]]\nname = "x"\nlabel = "l"\nlimit = 0.5\nlabels = "{outside}"',
    "clean.spelling.path": '[[clean.spelling]]\npath = "{outside}"',
    "clean.machines.address": '[clean.machines]\naddress = "tcp://192.0.2.1:8786"',
    **{
        f"{stage}.keep": f'[{stage}]\nkeep = "20260101T000000Z-abcdef"'
        for stage in ("sample", "clean", "decontaminate", "vocab", "chunk")
    },
    "decontaminate.keep_heldout": '[decontaminate]\nkeep_heldout = "20260101T000000Z-abcdef"',
    "dedup.against": '[dedup]\nagainst = ["20260101T000000Z-abcdef"]',
    "dedup.machines.address": '[dedup.machines]\naddress = "tcp://192.0.2.1:8786"',
    "decontaminate.benchmarks.path": '[[benchmarks]]\nname = "b"\npath = "{outside}"',
    "decontaminate.benchmarks.answers_path": '[[benchmarks]]\nname = "b"\npath = "{recipe}/a.txt"\n'
    'answers_path = "{outside}"',
    "decontaminate.machines.address": '[decontaminate.machines]\naddress = "tcp://192.0.2.1:8786"',
    "train.environment": '[train]\nenvironment = ["LD_PRELOAD={outside}"]',
    "vocab.base": '[vocab]\nbase = "{outside}"',
    "chunk.machines.address": '[chunk.machines]\naddress = "tcp://192.0.2.1:8786"',
    "train.hosts.address": '[train]\nranks = 2\n[train.hosts]\ncount = 2\naddress = "192.0.2.1:29400"',
    "train.base_model": '[train]\nbase_model = "{outside}"',
    "evaluate.earlier": '[evaluate]\nearlier = ["20260101T000000Z-abcdef"]',
    "evaluate.gate.base_model": '[evaluate.gate]\nsources = ["s"]\nbase_model = "{outside}"',
}
"""What each key that reaches something may not be; of a new one there is none, and the test of it fails."""


def _leaves(annotation: Any) -> Iterator[type]:
    if get_origin(annotation) is Literal or isinstance(annotation, typing.TypeVar):
        return
    if isinstance(annotation, type):
        yield annotation
        return
    inner = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    for one in inner:
        if one is not type(None) and one is not Ellipsis:
            yield from _leaves(one)


def _keys(model: type[BaseModel], place: str = "") -> Iterator[tuple[str, Any, list[Any]]]:
    for name, field in model.model_fields.items():
        here = f"{place}.{name}" if place else name
        yield here, field.annotation, field.metadata
        for leaf in _leaves(field.annotation):
            if isinstance(leaf, type) and issubclass(leaf, BaseModel):
                yield from _keys(leaf, here)


REACHING = sorted({place for place, annotation, marks in _keys(Recipe) if confinement.reach_of(annotation, marks)})


def test_every_key_with_text_is_known_to_reach_something_or_nothing():
    texts = {
        place
        for place, annotation, marks in _keys(Recipe)
        if confinement.reach_of(annotation, marks) is None
        and any(leaf in (str, bytes, object) or leaf is Any for leaf in _leaves(annotation))
    }
    assert texts - WORDS == set(), "mark the key with what it reaches (model.config.Reach), or name it in WORDS"
    assert WORDS - texts == set()


def test_a_path_is_known_by_its_type_and_others_by_their_mark():
    class New(StrictConfig):
        folder: Path | None = None
        folders: dict[str, tuple[Path, ...]] = Field(default_factory=dict)
        marked: Annotated[str, Reach.CODE] = ""
        word: str = ""

    found = {name: confinement.reach_of(field.annotation, field.metadata) for name, field in New.model_fields.items()}
    assert found == {"folder": Reach.FILE, "folders": Reach.FILE, "marked": Reach.CODE, "word": None}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that recipes are confined to, with a text and a module; beside it lies what nobody may read."""
    inside = tmp_path / "inside"
    (inside / "texts").mkdir(parents=True)
    (inside / "a.txt").write_text("a text\n")
    (inside / "texts" / "b.txt").write_text("another\n")
    (inside / "own.py").write_text("raise SystemExit('this module was run')\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("a secret\n")
    monkeypatch.setattr(confinement, "_folder", None)
    confinement.confine(inside)
    return inside


def recipe(folder: Path, more: str = "", paths: str = 'paths = ["{recipe}/a.txt"]') -> Recipe:
    text = (
        f"""format = 1\nname = "theirs"\nbudget_tokens = "1K"\n[[sources]]\nname = "s"\nweight = 1\n{paths}\n{more}\n"""
    )
    (folder / "theirs.toml").write_text(text)
    return load_recipe(folder / "theirs.toml", folder.parent / "root")


def test_what_lies_within_may_be_read(folder: Path):
    loaded = recipe(folder, paths='paths = ["{recipe}/a.txt", "{recipe}/texts", "{recipe}/*/*.txt"]')
    (listing,) = find_files(loaded.sample)
    assert sorted(file.path.name for file in listing.files) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("place", REACHING)
def test_each_key_that_reaches_beyond_the_folder_is_refused(folder: Path, place: str):
    more = OUTSIDE[place].replace("{outside}", str(folder.parent / "outside" / "secret.txt"))
    with pytest.raises(RecipeError, match=f"{place.rpartition('.')[2]}.*--untrusted"):
        recipe(folder, **({"paths": more} if more.startswith("paths") else {"more": more}))


@pytest.mark.parametrize(
    "path",
    [
        "{recipe}/../outside/secret.txt",
        "{recipe}/../outside",
        "{recipe}/../outside/*.txt",
        "{recipe}/texts/../../outside/**",
        "{stdlib}/json/*.py",
        "{root}/runs",
        "{mine}",
        "~",
        "/etc/hostname",
        "file:///etc/hostname",
        "file://{recipe}/%2e%2e/outside/secret.txt",
        "{recipe}/link.txt",
        "{recipe}/linked",
        "{recipe}/linked/*",
    ],
)
def test_no_path_of_a_source_leads_out(folder: Path, path: str):
    (folder / "link.txt").symlink_to(folder.parent / "outside" / "secret.txt")
    (folder / "linked").symlink_to(folder.parent / "outside")
    mine = f'[variables]\nmine = "{folder.parent}/outside"'
    with pytest.raises(RecipeError, match=r"outside of .*inside.*--untrusted"):
        recipe(folder, mine, paths=f"paths = ['{path}']")


@pytest.mark.parametrize(
    "path", ["{recipe}/texts", "{recipe}/texts/*", "{recipe}/**/*.txt", "{recipe}/*/../../outside/*"]
)
def test_no_link_among_listed_files_leads_out(folder: Path, path: str):
    (folder / "texts" / "link.txt").symlink_to(folder.parent / "outside" / "secret.txt")
    loaded = recipe(folder, paths=f"paths = ['{path}']")
    with pytest.raises(RecipeError, match=r"source `s` asks for .*outside of .*--untrusted"):
        find_files(loaded.sample)


def test_a_base_model_within_whose_weights_are_a_link_is_refused(folder: Path):
    (folder / "base").mkdir()
    (folder / "base" / "config.json").write_text("{}")
    (folder / "base" / "model.safetensors").symlink_to(folder.parent / "outside" / "secret.txt")
    with pytest.raises(RecipeError, match=r"model\.safetensors is .*secret\.txt, outside of"):
        recipe(folder, '[train]\nbase_model = "{recipe}/base"')


def test_found_weights_of_elsewhere_are_not_read(folder: Path):
    (folder.parent / "outside" / "weights.json").write_text('{"weights": {"s": 1}}')
    (folder / "theirs.toml").write_text(
        'format = 1\nname = "t"\nbudget_tokens = "1K"\nweights_from = "../outside/weights.json"\n'
        '[[sources]]\nname = "s"\npaths = ["{recipe}/a.txt"]\n'
    )
    with pytest.raises(RecipeError, match=r"weights_from.*--untrusted"):
        load_recipe(folder / "theirs.toml", folder.parent / "root")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/a.txt",
        "gs://bucket/a.txt",
        "hf://datasets/x/a.txt",
        "ftp://host/a.txt",
        "simplecache::file:///etc/passwd",
        "http://a.example::file:///etc/passwd",
        "zip://a.txt::http://a.example/b.zip",
        "local:///etc/passwd",
        "HTTP://127.0.0.1/a.txt",
        "http://[::1]/a.txt",
        "http://[::ffff:127.0.0.1]/a.txt",
        "http://[::file:///etc/passwd]/a.txt",
    ],
)
def test_addresses_beyond_the_web_are_refused(folder: Path, uri: str):
    with pytest.raises(RecipeError, match=r"only http:// and https:// addresses"):
        recipe(folder, paths=f"paths = ['{uri}']")


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700:4700::1111", True),
        ("127.0.0.1", False),
        ("127.8.9.10", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", False),
        ("2002:7f00:1::", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
    ],
)
def test_an_address_is_public_or_not(host: str, public: bool):
    assert confinement.is_public(host) is public


@pytest.fixture
def server() -> Iterator[int]:
    """A web server on all loopback addresses; `/to/HOST` redirects there."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", f"http://{self.path[4:]}/a.txt")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(b"secret")

        do_HEAD = do_GET

        def log_message(self, *words):
            pass

    running = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running.server_port
    running.shutdown()
    thread.join()
    running.server_close()


def _text(address: str) -> str:
    source = Source(name="s", paths=(address,), weight=1, format="text")
    (listing,) = find_files(SampleConfig(sources=(source,), budget_tokens=1000))
    with listing.files[0].open() as stream:
        return stream.read().decode()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_of_this_machine_is_not_asked(folder: Path, server: int, host: str):
    """By number, and by a name that resolves to it; other spellings of the number `aiohttp` refuses."""
    with pytest.raises(RecipeError, match="which is not public, and --untrusted refuses it"):
        _text(f"http://{host}:{server}/a.txt")


def test_a_redirect_to_an_address_that_is_not_public_is_not_followed(
    folder: Path, server: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confinement, "is_public", lambda host: host == "127.0.0.1")
    assert _text(f"http://127.0.0.1:{server}/a.txt") == "secret"
    assert _text(f"http://127.0.0.1:{server}/to/127.0.0.1:{server}") == "secret"
    with pytest.raises(RecipeError, match=r"127\.0\.0\.2, which is not public"):
        _text(f"http://127.0.0.1:{server}/to/127.0.0.2:{server}")


def test_without_the_option_all_is_as_it_was(tmp_path: Path, server: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(confinement, "_folder", None)
    assert _text(f"http://127.0.0.1:{server}/a.txt") == "secret"
    (tmp_path / "a.txt").write_text("x")
    assert recipe(tmp_path, '[clean.extensions]\npath = "{recipe}"').clean.extensions is not None


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each command of a group and of those within, by its words."""
    if not hasattr(group, "commands"):
        yield name.strip(), group
        return
    for word, command in group.commands.items():
        yield from commands(command, f"{name} {word}")


def test_every_command_that_runs_or_reads_a_recipe_takes_the_option():
    options = {name: {option.name for option in command.params} for name, command in commands(get_command(app))}
    take = {name for name, named in options.items() if "untrusted" in named}
    # The service runs whatever its forms name.
    assert take == {name for name, named in options.items() if "recipe" in named} - {"serve start"}
    assert {"run", "study search run", "study mix", "study ablate", "study scale", "nightly"} <= take


def test_what_the_program_itself_writes_into_a_recipe_is_no_reach_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The model, and the runs, that a night goes on from."""
    monkeypatch.setattr(confinement, "_own", set())
    model, run_id = folder.parent / "model", "20260101T000000Z-abcdef"
    more = f'[dedup]\nagainst = ["{run_id}"]\n[clean.deny]\npath = "{model}"'
    with pytest.raises(RecipeError, match="--untrusted"):
        recipe(folder, more)
    confinement.allow(model, run_id)
    assert recipe(folder, more).dedup.against == (run_id,)
    with pytest.raises(RecipeError, match="--untrusted"):
        recipe(folder, more.replace(run_id, f"{run_id}0"))


def test_nobody_is_notified_of_nights_by_the_recipe_s_own_words(folder: Path, monkeypatch: pytest.MonkeyPatch):
    table = {"notify": {"webhook": "https://example.org/hook"}}
    with pytest.raises(RecipeError, match=r"theirs: notify .*--untrusted refuses.*BESSEMER_WEBHOOK"):
        read_notify(table, "theirs")
    monkeypatch.setenv("BESSEMER_WEBHOOK", "https://example.org/mine")
    assert read_notify({}, "theirs").webhook == "https://example.org/mine"
    monkeypatch.setattr(confinement, "_folder", None)
    assert read_notify(table, "mine").webhook == "https://example.org/mine"


@pytest.mark.parametrize("command", ["run", "plan", "estimate", "nightly"])
def test_commands_that_read_a_recipe_take_the_option(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch):
    recipe(folder)
    monkeypatch.setattr(confinement, "_folder", None)
    text = (folder / "theirs.toml").read_text()
    (folder / "theirs.toml").write_text(text + '[clean.extensions]\npath = "{recipe}"\nedits = ["own:edit"]\n')
    words = [command, str(folder / "theirs.toml"), "--untrusted", str(folder), "--root", str(folder.parent / "root")]
    done = invoke(*words, code=2)
    assert "clean.extensions.path" in done.stderr
    assert "this module was run" not in done.stdout + done.stderr
    assert confinement.is_confined()
    assert not (folder.parent / "root" / "runs").exists()


def test_the_folder_must_be_there(folder: Path):
    with pytest.raises(RecipeError, match="there is no such folder"):
        confinement.confine(folder / "gone")
