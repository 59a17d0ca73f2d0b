"""Content digests of every stage of seven small runs, to compare two checkouts: `diff` of two outputs shows what moved.

    python benchmarks/content_digests.py FOLDER [RUN...] [--workers N]

FOLDER takes the inputs and the roots, and must be the same path for both checkouts, empty each time, since ids of
documents hold the paths of their files. A run is one of gpt, bert, t5, extended (the GPT's vocabulary by Russian
entries), html, store (the GPT with its root in an object store, `deployments/local/object_store.sh`) and demo. The text
is made here by seed, so that digests depend on the code and the machine alone; the demo reads the text that comes with
Python. `--workers` sets the processes or threads of every stage that has some, which must change nothing.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
BESSEMER = Path(sys.executable).with_name("bessemer")
WORKERS = ("clean.workers", "dedup.threads", "decontaminate.workers", "chunk.workers")
STAGES = ("sample", "clean", "dedup", "decontaminate", "vocab", "chunk", "train", "evaluate")
ENGLISH = (
    "the quick river carries iron and coal from hills to towns where people work at night because furnaces need air"
    " fire water time care and good hands which learn slowly what old masters knew about heat colour and sound"
)
RUSSIAN = (
    "река несёт железо и уголь с холмов к городам где люди работают ночью потому что печам нужен воздух огонь вода"
    " время забота и хорошие руки которые медленно учат то что знали старые мастера о жаре цвете и звуке"
)
COMMON = """
format = 1
name = "{name}"
seed = 3
budget_tokens = "30K"

[[sources]]
name = "english"
paths = ["{folder}/{kind}"]
weight = {weight}
language = "en"

[decontaminate]
heldout_min_documents = 1

[train]
batch_rows = 8
micro_batch_rows = 4

[train.model]
context = 64
layers = 2
heads = 2
width = 32
"""


def main() -> None:
    """Write the inputs, run what was asked for, print `RUN STAGE CONTENT` lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", nargs="*", default=["gpt", "bert", "t5", "extended", "html", "store", "demo"])
    parser.add_argument("--workers", type=int)
    asked = parser.parse_args()
    folder: Path = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    given = [] if asked.workers is None else [f"--set={key}={asked.workers}" for key in WORKERS]
    write_inputs(folder)
    for name in asked.runs:
        if name == "store":
            run_in_store(folder, given)
            continue
        root = folder / "roots" / name
        bessemer([*run_words(name, folder), *given], root)
        if name == "gpt":
            bessemer(["model", "promote", "latest", "--because", "base of the extension"], root)
        show(name, root)


def run_words(name: str, folder: Path) -> list[str]:
    """Write the recipe of a run, where it needs one; return the words of its command."""
    if name == "demo":
        return ["run", "quickstart"]
    kind = "pages" if name == "html" else "texts"
    text = COMMON.replace("{name}", name).replace("{folder}", str(folder)).replace("{kind}", kind)
    text = text.replace("{weight}", "0.5" if name == "extended" else "1.0")
    if name == "extended":
        current = folder / "roots" / "gpt" / "current"
        text = text.replace(
            "[decontaminate]",
            f"""[[sources]]
name = "russian"
paths = ["{folder}/russian"]
weight = 0.5
language = "ru"

[vocab]
base = "{current}/tokenizer/tokenizer.model"
extend = {{ ru = 20 }}

[decontaminate]""",
        )
        text = text.replace(
            "[train]", f'[train]\nbase_model = "{current}/model"\nnew_rows = "mean"\ntrainable = "new_rows"'
        )
    else:
        text += "\n[vocab]\nvocab_size = 512\n"
    if name in ("bert", "t5"):
        text = text.replace("[train.model]", f'[train.model]\narchitecture = "{name}"')
    recipe = folder / f"{name}.toml"
    recipe.write_text(text)
    return ["run", str(recipe)]


def write_inputs(folder: Path) -> None:
    """Write two hundred English texts, as many web pages of English text, and as many Russian texts."""
    for kind, words, suffix in (
        ("texts", ENGLISH.split(), "txt"),
        ("russian", RUSSIAN.split(), "txt"),
        ("pages", ENGLISH.split(), "html"),
    ):
        place = folder / kind
        place.mkdir(exist_ok=True)
        for number in range(200):
            generator = random.Random(f"{kind}-{number}")
            lines = [" ".join(generator.choices(words, k=14)).capitalize() + "." for _ in range(20)]
            text = "\n".join(lines)
            if kind == "pages":
                paragraphs = "".join(f"<p>{line}</p>" for line in lines)
                text = f"<html><head><title>Page {number}</title></head><body><nav>Home</nav>{paragraphs}</body></html>"
            (place / f"{number:03d}.{suffix}").write_text(text, encoding="utf-8")


def run_in_store(folder: Path, given: list[str]) -> None:
    """Run the GPT's recipe with an object store's address as its root, and print its content digests."""
    script, place = PROJECT / "deployments" / "local" / "object_store.sh", folder / "object-store"
    environment = {**os.environ, "PYTHON": sys.executable}
    answer = subprocess.run(
        ["bash", str(script), "start", str(place), "0", "0"],
        env=environment,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(keys, AWS_ENDPOINT_URL=answer.stdout.splitlines()[-1], BESSEMER_CACHE=str(folder / "cache"))
    try:
        bessemer([*run_words("gpt", folder), *given], "s3://bessemer/digests")
        (cached,) = {path.parents[3] for path in (folder / "cache").glob("**/artifacts/*/*/manifest.json")}
        show("store", cached)
    finally:
        subprocess.run(
            ["bash", str(script), "stop", str(place)], env=environment, check=False, stdout=subprocess.DEVNULL
        )


def bessemer(words: list[str], root: Path | str) -> None:
    """Run one command, its output on standard error."""
    subprocess.run([str(BESSEMER), *words, "--root", str(root)], check=True, stdout=sys.stderr)


def show(name: str, root: Path) -> None:
    """Print the content digest of each stage of the root's newest artifacts."""
    for stage in STAGES:
        manifests = sorted(root.glob(f"artifacts/{stage}/*/manifest.json"), key=lambda path: path.stat().st_mtime)
        print(name, stage, json.loads(manifests[-1].read_text())["content"] if manifests else "missing", flush=True)


if __name__ == "__main__":
    main()
