"""The chain of cleaning, preset `fineweb`, per core: beside datatrove's filters, ftfy, trafilatura and resiliparse.

    python benchmarks/clean_speed.py --data DATA [--peers FOLDER] [--json FILE]

Ours does all that the preset asks for, with languages, digests, tables and ledger; datatrove's part are the filters of
its FineWeb example, and the other peers do their one thing. A peer without an environment in FOLDER
(`peers/install.sh` makes them) is left out. All clean the same two megabytes, as often. `mix` has one document
after another of Markdown, mojibake, Chinese, Russian and chat in random order.
"""

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from measuring import OURS, Row, arguments, compare, records, show, sides

PLAIN = {"en_books": "eng", "ru_novels": "rus", "zh_classic_prose": "zho"}
MIXED = ("en_techdocs_md", "mojibake", "zh_techdocs", "zh_classic_prose", "ru_techdocs", "ru_novels", "social_emoji")
MARKDOWN = ("en_techdocs_md", "zh_techdocs", "ru_techdocs")
ALONE = ("en_techdocs_md", "zh_techdocs", "ru_techdocs", "social_emoji")
PAGES = "web_html_raw"
PLAIN_TARGET, MIXED_TARGET = 30, 10
PAGES_TARGETS = {"trafilatura": 1, "resiliparse": 20}
ROUNDS = 2
MOST_BYTES = 2_000_000
TURNS = 2


def measure(data: Path, peers: Path | None) -> Iterator[Row]:
    """Yield a row for each text and tool."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "documents.jsonl"
        for corpus, language in PLAIN.items():
            write_documents(source, data, [corpus])
            yield from _compared(corpus, source, peers, {"datatrove": language, "ftfy": "-"}, PLAIN_TARGET)
        write_documents(source, data, MIXED)
        yield from _compared("mix", source, peers, {"datatrove": "eng", "ftfy": "-"}, MIXED_TARGET)
        for corpus in ALONE:
            write_documents(source, data, [corpus])
            yield from _compared(corpus, source, peers, {}, None)
        write_documents(source, data, [PAGES])
        for extractor, target in PAGES_TARGETS.items():
            yield from _compared(f"{PAGES}, {extractor}", source, peers, {extractor: "-"}, target, extractor)


def write_documents(target: Path, data: Path, corpora: Sequence[str]) -> None:
    """Write documents of corpora as JSON lines of text and kind, those of several corpora in random order."""
    lines = [
        json.dumps({"text": record["text"], "kind": _kind(corpus)}, ensure_ascii=False)
        for corpus in corpora
        for record in records(data, [corpus])
    ]
    if len(corpora) > 1:
        random.Random(0).shuffle(lines)
    target.write_text("\n".join(lines) + "\n", "utf-8")


def _kind(corpus: str) -> str:
    return "markdown" if corpus in MARKDOWN else "html" if corpus == PAGES else "text"


def _compared(
    text: str,
    source: Path,
    peers: Path | None,
    options: dict[str, str],
    target: float | None,
    extractor: str = "trafilatura",
) -> Iterator[Row]:
    asked = {OURS: extractor, **options}
    words = {tool: (source, ROUNDS, MOST_BYTES, option) for tool, option in asked.items()}
    return compare("clean", text, sides("clean.py", words, peers), TURNS, target)


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    show(measure(options.data, options.peers), options.json)
