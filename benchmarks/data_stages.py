"""The four data stages beside datatrove, datasketch, rensa and others, per core, in one run and one table.

    python benchmarks/data_stages.py --data DATA [--peers FOLDER] [--json FILE] [--only sample,clean,...]

`make bench-data` does it with all peers. The inner work of each stage is timed beside its peers; `ratio` says how many
times as fast Bessemer is: all tools of a text read the same of it, as often. Behind each stage's kernels its row `whole
stage` is the stage as a run builds it, those after sample on all that it left: with reading and writing, digests, the
ledger, and the search's measuring of itself. It has no peer.
"""

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
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


def whole_stages(data: Path, size: int = SIZE) -> Iterator[Row]:
    """Yield a row per stage, of the second of two builds, for which all kernels are compiled."""
    program = PROJECT / "benchmarks" / "stage_build.py"
    with tempfile.TemporaryDirectory() as scratch:
        source, documents = Path(scratch) / "text.jsonl", "-"
        write_texts(source, texts_of_size(data, size))
        for stage, settings in settings_of(source, data).items():
            words = [documents, json.dumps(settings), 1]
            for root in ("first", "second"):
                result = on_one_core(sys.executable, program, stage, Path(scratch) / stage / root, *words)
            if stage == "sample":
                documents = result["artifact"]
            rate, peak = result["bytes"] / result["seconds"] / 1e6, result["peak_bytes"] / 1e6
            yield Row(stage, f"{len(EDITED_CORPORA)} corpora, whole stage", result["bytes"] / 1e6, OURS, rate, peak)


def texts_of_size(data: Path, size: int) -> Iterator[str]:
    """Yield the beginning of `edited_texts`, about `size` bytes."""
    texts = edited_texts(data)
    while size > 0:
        text = next(texts)
        size -= len(text.encode())
        yield text


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--only", help="stages to measure, with commas between")
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of text for the whole stages")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else [*MEASURES, "whole"]
    show(rows(options, chosen), options.json)


def rows(options: Namespace, chosen: Sequence[str]) -> Iterator[Row]:
    """Yield for each stage its kernels beside their peers, then the whole stage."""
    whole = {row.stage: row for row in whole_stages(options.data, options.size)} if "whole" in chosen else {}
    for stage, measure in MEASURES.items():
        if stage in chosen:
            yield from measure(options.data, options.peers)
        if stage in whole:
            yield whole[stage]


if __name__ == "__main__":
    main()
