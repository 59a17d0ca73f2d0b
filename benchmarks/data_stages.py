"""The four data stages beside datatrove, datasketch, rensa and others, per core, in one run and one table.

    python benchmarks/data_stages.py --data DATA [--peers FOLDER] [--json FILE] [--only sample,clean,...]

`make bench-data` does this with all peers. The inner work of each stage stands beside its peers; `ratio` says how many
times as fast Bessemer is. The rows `whole stage` are the stages as a run builds them, those after sample on all that it
left: with reading and writing, digests, the ledger, and the search's measuring of itself. They have no peer.
"""

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import clean_speed
import decontaminate_scan
import dedup_signatures
import sample_reading
from data_memory import settings_of
from measuring import EDITED_CORPORA, OURS, PROJECT, Row, arguments, edited_texts, on_one_core, show, write_texts

SIZE = 300_000_000
MEASURES = {
    "sample": sample_reading.measure,
    "clean": clean_speed.measure,
    "dedup": dedup_signatures.measure,
    "decontaminate": decontaminate_scan.measure,
}


def whole_stages(data: Path) -> Iterator[Row]:
    """A row per stage; the second of two builds counts, for which all kernels are compiled."""
    program = PROJECT / "benchmarks" / "stage_build.py"
    with tempfile.TemporaryDirectory() as scratch:
        source, documents = Path(scratch) / "text.jsonl", "-"
        write_texts(source, texts_of_size(data, SIZE))
        for stage, settings in settings_of(source, data).items():
            words = [documents, json.dumps(settings), 1]
            for root in ("first", "second"):
                told = on_one_core(sys.executable, program, stage, Path(scratch) / stage / root, *words)
            if stage == "sample":
                documents = told["artifact"]
            rate, peak = told["bytes"] / told["seconds"] / 1e6, told["peak_bytes"] / 1e6
            yield Row(stage, f"{len(EDITED_CORPORA)} corpora, whole stage", told["bytes"] / 1e6, OURS, rate, peak)


def texts_of_size(data: Path, size: int) -> Iterator[str]:
    """The beginning of `edited_texts`, about `size` bytes."""
    texts = edited_texts(data)
    while size > 0:
        text = next(texts)
        size -= len(text.encode())
        yield text


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--only", help="stages to measure, with commas between")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else [*MEASURES, "whole"]
    beside = [measure(options.data, options.peers) for stage, measure in MEASURES.items() if stage in chosen]
    whole = [whole_stages(options.data)] if "whole" in chosen else []
    show(itertools.chain(*beside, *whole), options.json)


if __name__ == "__main__":
    main()
