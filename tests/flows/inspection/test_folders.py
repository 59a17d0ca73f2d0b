"""Eighteen folders of text as people have them: init writes a recipe of each that is checked, planned, run unchanged.

Their text is made from small vocabularies. `make prove-init` trains and exports a model of each, by the commands alone.
"""

import bz2
import csv
import gzip
import json
import mailbox
import random
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.recipe.load import load_recipe
from flows.runs.pipeline import BUILDERS, run_stages
from tasks.artifacts.build import RunContext
from tests.command import bessemer, invoke

pytestmark = pytest.mark.usefixtures("shared_server")

WORDS = """
the of and to in is that with for as was on be at by this which from have are they were one all there when they
went down early before market opened carried bread cheese apples home along river where children played until
evening came slowly over hills beyond village old woman told stories about ships storms islands far away nobody
believed but everyone listened because winter was long lamps were warm outside snow covered roofs fields quiet
roads only dogs barked sometimes morning baker lit his oven while teacher wrote letters to her brother who lived
abroad working as doctor near harbour
""".split()  # noqa: SIM905
GERMAN = """
der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er hat dass sie
nach wird bei einer über größer Straße früh schön müssen können Häuser Bäume grün weiß Mädchen hören Gärten Brücke
""".split()  # noqa: SIM905
RUSSIAN = """
и в не на я быть он с что а по это она этот к но они мы весь который из у то за свой что весной после вечером город
дорога старый дом река люди говорили долго молча смотрели письмо хлеб зима снег утро работа учитель дети песня
""".split()  # noqa: SIM905
CHINESE = (
    "天还没有亮炉子就已经点着了白热的铁水慢慢流进院子里沙模之中工人们都站在旁边看着我"
    "们明天去学校读书写字老师说今天很好风大雨小山水花鸟人来往市上买米面回家吃饭说话唱歌"
)


def prose(seed: int, size: int, words: list[str] = WORDS) -> str:
    """About `size` characters of sentences in paragraphs, other ones for every seed."""
    draw, text, line = random.Random(seed), "", 0
    while len(text) < size:
        sentence = " ".join(draw.choices(words, k=draw.randint(7, 16)))
        line += 1
        text += f"{sentence[0].upper()}{sentence[1:]}.{chr(10) * 2 if line % 5 == 0 else ' '}"
    return text.strip() + "\n"


def chinese(seed: int, size: int) -> str:
    """Sentences of characters with Chinese punctuation."""
    draw, text = random.Random(seed), ""
    while len(text) < size:
        text += "".join(draw.choices(CHINESE, k=draw.randint(6, 14))) + draw.choice("，。。！")
    return text + "。\n"


def short_posts(folder: Path) -> None:
    posts = [{"id": f"p{n}", "text": prose(n, 90).replace("\n", " "), "likes": n % 7} for n in range(900)]
    (folder / "posts.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))


def one_huge_file(folder: Path) -> None:
    (folder / "everything.txt").write_text(prose(1, 300_000))


def many_tiny_files(folder: Path) -> None:
    for number in range(2_000):
        place = folder / f"{number % 20:02d}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.txt").write_text(prose(number, 180))


def mixed_encodings(folder: Path) -> None:
    for number in range(24):
        (folder / f"plain-{number}.txt").write_text(prose(number, 3_000))
    for number in range(6):
        (folder / f"german-{number}.txt").write_bytes(prose(number, 3_000, GERMAN).encode("cp1252"))
        (folder / f"russian-{number}.txt").write_bytes(prose(number, 3_000, RUSSIAN).encode("cp1251"))
        (folder / f"wide-{number}.txt").write_bytes(prose(number + 50, 3_000).encode("utf-16"))


def code(folder: Path) -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in ("json", "email", "http", "logging"):
        (folder / name).mkdir()
        for path in sorted((library / name).glob("*.py")):
            (folder / name / path.name).write_bytes(path.read_bytes())


def web_pages(folder: Path) -> None:
    for number in range(60):
        paragraphs = "".join(f"<p>{prose(number * 9 + part, 700)}</p>" for part in range(4))
        head = f"<head><title>Page {number}</title><script>var x = 1;</script></head>"
        page = f"<!DOCTYPE html><html>{head}<body><nav>Home About</nav><article>{paragraphs}</article></body></html>"
        (folder / f"{number}.html").write_text(page)


def wikipedia_dump(folder: Path) -> None:
    pages = "".join(
        f"<page><title>T{n}</title><ns>0</ns><id>{n}</id><revision><text>'''T{n}''' is a [[thing]].\n== Use ==\n"
        f"{prose(n, 1_800)}</text></revision></page>\n"
        for n in range(90)
    )
    dump = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">\n{pages}</mediawiki>'
    (folder / "enwiki-pages-articles.xml.bz2").write_bytes(bz2.compress(dump.encode()))


def parquet(folder: Path) -> None:
    for part in range(2):
        texts = [prose(part * 100 + n, 1_500) for n in range(60)]
        table = pa.table({"doc_id": [f"{part}-{n}" for n in range(60)], "content": texts, "score": [0.5] * 60})
        pq.write_table(table, folder / f"train-{part:05d}.parquet")


def archives(folder: Path) -> None:
    with zipfile.ZipFile(folder / "novels.zip", "w") as packed:
        for number in range(30):
            packed.writestr(f"novels/{number}.txt", prose(number, 2_500))
        packed.writestr("../outside.txt", "not written")
    inside = folder.parent / "letters"
    inside.mkdir()
    for number in range(30):
        (inside / f"{number}.md").write_text(f"# Letter {number}\n\n{prose(number + 500, 2_500)}")
    with tarfile.open(folder / "letters.tar.gz", "w:gz") as packed:
        packed.add(inside, "letters")


def nested_folders(folder: Path) -> None:
    for number in range(60):
        place = folder / "a" / f"b{number % 3}" / f"c{number % 7}" / "d e" / "f"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.{'md' if number % 2 else 'txt'}").write_text(prose(number, 2_500))
    (folder / "top.txt").write_text(prose(999, 2_500))


def chinese_text(folder: Path) -> None:
    for number in range(60):
        (folder / f"文{number}.txt").write_text(chinese(number, 1_200))


def partly_broken(folder: Path) -> None:
    lines = [json.dumps({"text": prose(n, 1_200)}) if n % 8 else '{"text": "cut off' for n in range(120)]
    (folder / "lines.jsonl").write_text("\n".join(lines) + "\n")
    whole = gzip.compress("".join(prose(n, 2_000) for n in range(9)).encode())
    (folder / "whole.txt.gz").write_bytes(whole)
    (folder / "cut.txt.gz").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.txt").touch()
    (folder / "picture.txt").write_bytes(bytes(range(256)) * 8)
    for number in range(20):
        (folder / f"good-{number}.txt").write_text(prose(number + 300, 2_500))


def mail(folder: Path) -> None:
    box = mailbox.mbox(folder / "Sent.mbox")
    for number in range(60):
        message = EmailMessage()
        message["From"], message["Subject"] = "a@example.org", f"Letter {number}"
        message.set_content(prose(number, 1_500), cte="quoted-printable" if number % 2 else "base64")
        message.add_attachment(bytes(range(99)), "image", "png", filename="map.png")
        box.add(message)
    for number in range(20):
        message = EmailMessage()
        message.set_content(prose(number, 1_500, GERMAN), charset="latin-1")
        (folder / f"{number}.eml").write_bytes(bytes(message))
    box.close()


def subtitles(folder: Path) -> None:
    for number in range(40):
        srt = "".join(
            f"{n}\r\n00:00:{n:02d},000 --> 00:00:{n:02d},900\r\n{line}.\r\n\r\n"
            for n, line in enumerate(prose(number, 2_500).split(". "))
        )
        if number % 2:
            (folder / f"{number}.srt").write_bytes(f"\ufeff{srt}".encode())
        else:
            (folder / f"{number}.vtt").write_text("WEBVTT\n\n" + srt.replace(",", "."))


def notes_with_pictures(folder: Path) -> None:
    for number in range(60):
        place = folder / ("Daily", "Reading list")[number % 2]
        place.mkdir(exist_ok=True)
        front = f"---\ntitle: Note {number}\ntags: [a, b]\n---\n\n![[{number}.png]]\n\n"
        (place / f"Note {number}.md").write_text(front + prose(number, 2_000))
        (place / f"{number}.png").write_bytes(b"\x89PNG\r\n" + bytes(range(99)))
    (folder / ".obsidian").mkdir()
    (folder / ".obsidian" / "app.json").write_text("{}")
    (folder / "Board.canvas").write_text('{"nodes":[{"id":"a"}]}')


def chats(folder: Path) -> None:
    posts = [{"author": f"u{n % 9}", "body": prose(n, 400), "score": n} for n in range(200)]
    said = [{"time": n, "msg_text": prose(n + 300, 400), "nick": "ann"} for n in range(100)]
    asked = [{"model": "m", "conversations": [{"from": "human", "value": prose(n, 300)}]} for n in range(50)]
    for name, records in (("forum", posts), ("irc", said), ("assistant", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    export = [{"user": f"U{n % 3}", "ts": f"{n}.0", "text": prose(n + 600, 400)} for n in range(80)]
    (folder / "general").mkdir()
    (folder / "general" / "2026-01-01.json").write_text(json.dumps(export, indent=1))


def papers(folder: Path) -> None:
    for number in range(24):
        place = folder / f"paper{number}"
        place.mkdir()
        body = f"\\section{{One}}\n{prose(number, 2_500)}\n\\begin{{equation}}\nE = mc^2\n\\end{{equation}}\n"
        (place / "main.tex").write_text(f"\\documentclass{{article}}\n\\begin{{document}}\n{body}\\end{{document}}\n")
        (place / "refs.bib").write_text(f"@book{{k{number},\n  title = {{{prose(number + 50, 60).strip()}}},\n}}\n" * 9)
        (place / "figure.pdf").write_bytes(b"%PDF-1.4\0")


def reviews(folder: Path) -> None:
    def text(number: int) -> str:
        return f'{prose(number, 500)}\nShe said "go on", and; well.'

    with (folder / "reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("stars", "review"), *((n % 5, text(n)) for n in range(150))])
    with (folder / "excel.csv").open("w", newline="", encoding="cp1252") as file:
        rows = [("Nr", "Kommentar"), *((n, prose(n, 500, GERMAN)) for n in range(80))]
        csv.writer(file, delimiter=";").writerows(rows)
    with (folder / "unicode.tsv").open("w", newline="", encoding="utf-16") as file:
        rows = [("id", "comment"), *((n, prose(n + 200, 500).replace("\n", " ")) for n in range(80))]
        csv.writer(file, delimiter="\t").writerows(rows)


FOLDERS: dict[str, Callable[[Path], None]] = {
    make.__name__: make
    for make in (
        short_posts,
        one_huge_file,
        many_tiny_files,
        mixed_encodings,
        code,
        web_pages,
        wikipedia_dump,
        parquet,
        archives,
        nested_folders,
        chinese_text,
        partly_broken,
        mail,
        subtitles,
        notes_with_pictures,
        chats,
        papers,
        reviews,
    )
}
DOCUMENTS = {
    "short_posts": 900,
    "one_huge_file": 1,
    "many_tiny_files": 2_000,
    "mixed_encodings": 42,
    "web_pages": 60,
    "wikipedia_dump": 90,
    "parquet": 120,
    "archives": 60,
    "nested_folders": 61,
    "chinese_text": 60,
    "partly_broken": 105 + 1 + 20,
    "mail": 60 + 20,
    "subtitles": 40,
    "notes_with_pictures": 60,
    "chats": 200 + 100 + 80,
    "papers": 2 * 24,
    "reviews": 150 + 80 + 80,
}
"""Documents that sample must read of a folder; of code those of this Python."""
REMARKS = {
    "one_huge_file": "none can be held out",
    "partly_broken": "cannot be read",
    "notes_with_pictures": "59 more .png: a picture, sound or film",
    "chats": "not read assistant.jsonl: conversations",
    "papers": "23 more .pdf: PDF",
}
PACKED = {"archives", "mail", "subtitles", "chats"}
"""Folders that `init` unpacks."""


def written(name: str, place: Path) -> Path:
    """Make a folder and write its recipe with init."""
    folder, recipe = place / name, place / f"{name}.toml"
    folder.mkdir()
    FOLDERS[name](folder)
    unpack = ["--unpack"] if name in PACKED else []
    done = CliRunner().invoke(app, ["init", str(folder), "--output", str(recipe), *unpack])
    assert done.exit_code == 0, done.output
    assert REMARKS.get(name, "") in " ".join(done.output.split())
    return recipe


@pytest.mark.parametrize("name", FOLDERS)
def test_the_recipe_is_short_and_check_and_plan_take_it_unchanged(name: str, tmp_path: Path) -> None:
    recipe, root = written(name, tmp_path), tmp_path / "root"
    settings = [line for line in recipe.read_text().splitlines() if line and not line.startswith("#")]
    sources = sum(line.startswith("[[sources]]") for line in settings)
    assert len(settings) <= 14 + 9 * sources
    for words in (["check", str(recipe), "--json"], ["plan", str(recipe), "--json"]):
        done = CliRunner().invoke(app, [*words, "--root", str(root)])
        assert done.exit_code == 0, done.output
    loaded = load_recipe(recipe, root)
    sampled = BUILDERS["sample"](RunContext(root, run_id="init"), loaded.sample).report.total()
    assert sampled.documents_out == DOCUMENTS.get(name, sampled.documents_out) > 0
    assert not (tmp_path / "outside.txt").exists()


def test_a_model_is_trained_and_exported(tmp_path: Path) -> None:
    """The stages are built without a server; then `run` has nothing to build, and writes the record and the page."""
    recipe, root = written("short_posts", tmp_path), tmp_path / "root"
    context = RunContext(root, run_id="run")
    run_stages(load_recipe(recipe, root), lambda stage, *inputs: BUILDERS[stage](context, *inputs))
    check_commands(invoke, recipe, root, tmp_path / "model")


@pytest.mark.prove_init
@pytest.mark.parametrize("name", FOLDERS)
def test_estimate_run_and_export_take_the_recipe_unchanged(name: str, tmp_path: Path) -> None:
    recipe = written(name, tmp_path)
    bessemer("estimate", recipe, "--root", tmp_path / "root")
    check_commands(bessemer, recipe, tmp_path / "root", tmp_path / "model")


def check_commands(command: Callable[..., Any], recipe: Path, root: Path, model: Path) -> None:
    record = json.loads(command("run", recipe, "--root", root, "--json").stdout)
    assert (record["state"], len(record["stages"])) == ("completed", 8)
    assert Path(record["page"]).is_file()
    command("model", "export", "latest", model, "--root", root)
    assert (model / "model.safetensors").is_file()
