"""MinHash signatures per second and core, beside datasketch 2, rensa and datatrove, on the same text in one run.

    python benchmarks/dedup_signatures.py --data DATA [--peers FOLDER] [--json FILE]

DATA holds the corpora `en_books`, `en_techdocs_md`, `zh_techdocs`, `ru_novels`. A peer without an environment in
FOLDER (`peers/install.sh` makes them) is left out. All sign the same megabyte of each text, as often.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from measuring import OURS, Row, arguments, compare, records, show, sides, write_texts

CORPORA = ("en_books", "en_techdocs_md", "zh_techdocs", "ru_novels")
TARGET = 200
PEERS = ("rensa", "datasketch", "datatrove")
ROUNDS = 3
MOST_BYTES = 1_000_000
TURNS = 2


def measure(data: Path, peers: Path | None) -> Iterator[Row]:
    """Yield a row for each corpus and tool."""
    for corpus in CORPORA:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "texts.jsonl"
            write_texts(source, (record["text"] for record in records(data, [corpus])))
            words: dict[str, tuple[object, ...]] = dict.fromkeys((OURS, *PEERS), (source, ROUNDS, MOST_BYTES))
            yield from compare("dedup, signing", corpus, sides("sign.py", words, peers), TURNS, TARGET)


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    show(measure(options.data, options.peers), options.json)
