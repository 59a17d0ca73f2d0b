"""Signs INPUT.jsonl with one tool, in that tool's own environment.

    python sign.py TOOL INPUT.jsonl ROUNDS MOST_BYTES

112 permutations over shingles of 5 words, one thread; reading the file and compiling are left out, the fastest of
ROUNDS counts. Words are those of each tool's own recipe, and runs of \\w for datasketch and rensa, which bring none.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from measuring import fastest, print_rate, read_texts

WORD = re.compile(r"\w+")
WIDTH, LENGTH = 5, 112


def shingles(text: str) -> list[str]:
    words = WORD.findall(text.lower())
    return [" ".join(words[i : i + WIDTH]) for i in range(max(1, len(words) - WIDTH + 1))]


def bessemer(texts: list[str]) -> Callable[[], object]:
    import pyarrow as pa

    from tasks.artifacts.tables.columns import text_buffers
    from tasks.dedup.minhash import signatures_of

    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    signatures_of(data, offsets[:3], WIDTH, LENGTH, 1)
    return lambda: signatures_of(data, offsets, WIDTH, LENGTH, 1)


def datasketch(texts: list[str]) -> Callable[[], object]:
    from datasketch import MinHash

    # Drawing them takes longer than signing a short text.
    first = MinHash(num_perm=LENGTH, seed=1)

    def sign() -> None:
        for text in texts:
            signed = MinHash(num_perm=LENGTH, seed=1, permutations=first.permutations, scheme=first.scheme)
            signed.update_batch([shingle.encode() for shingle in shingles(text)])

    return sign


def rensa(texts: list[str]) -> Callable[[], object]:
    from rensa import RMinHash

    def sign() -> None:
        for text in texts:
            RMinHash(num_perm=LENGTH, seed=1).update(shingles(text))

    return sign


def datatrove(texts: list[str]) -> Callable[[], object]:
    from datatrove.pipeline.dedup.minhash import MinhashDedupSignature

    signer = MinhashDedupSignature("/tmp")  # default: 14 buckets of 8, its own words
    signer.get_signature(signer.get_shingles("some words to load the word splitter with"))

    def sign() -> None:
        for text in texts:
            found = signer.get_shingles(text)
            if found.size:
                signer.get_signature(found)

    return sign


TOOLS = {"bessemer": bessemer, "datasketch": datasketch, "rensa": rensa, "datatrove": datatrove}


def main(tool: str, source: str, rounds: str, most_bytes: str) -> None:
    texts, size = read_texts(Path(source), float(most_bytes))
    print_rate(fastest(TOOLS[tool](texts), int(rounds)), size)


main(*sys.argv[1:])
