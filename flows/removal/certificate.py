"""The certificate of a removal: what left, what was trained again, what was deleted, and what still holds a trace.

A JSON file that `bessemer store verify` checks, and a page that says the same in sentences. Neither holds text or an id
of a document: each is named by a commitment, BLAKE3 of a salt and its text. Who has the text and the salt, which is
shown once and not kept, can check that it is the one.
"""

import html
from dataclasses import asdict, dataclass
from pathlib import Path

import blake3

from model.checksummed_json import read_sealed, write_sealed
from model.errors import InputError
from model.files import write_atomically
from tasks.artifacts.remote.attach import store_of
from tasks.artifacts.remote.metadata import CERTIFICATE_LOST, FORGOTTEN, put_file

TRACES = (
    "The recipe of the new run lists the ids of the documents, hashes of their source, path and record, so that they"
    " are left out again if they are still in their files. Delete them there, and the list can be emptied.",
    "The kept aggregates below were decided when the documents were there.",
)
STABLE_TRACE = (
    "The recipe lists a tombstone for each document: its source, its number of tokens, and 64 bits of a hash of its"
    " tokens. Who has the text can find out by it that it was there. A removal with --refill leaves none."
)
BEYOND = (
    "Copies outside of this root: backups, exported or published models, downloaded inputs, logs and the database of"
    " Prefect, page caches.",
    "Names: `inputs.json` and records of nightly runs list files of sources by path and digest.",
    "Blocks of a solid-state disk or a snapshot of a file system that were overwritten, but not yet reused.",
)
BEYOND_A_STORE = (
    "Folders of other machines for {store}: each deletes its copies when a command opens the root there the next time,"
    " and holds them until then. A machine that runs the old recipe again makes the artifacts again.",
    "The operator of {store}: backups, access logs, disks behind it.",
)


@dataclass(frozen=True)
class Certificate:
    """One removal; all fields are JSON values."""

    before: str
    """Run that held the documents."""
    after: str
    """Run of the recipe without them."""
    when: str
    commitments: tuple[str, ...]
    duplicates: int
    """Of them, near-duplicates that left with those requested."""
    promoted: int
    """Near-duplicates that took the place of those requested."""
    heldout: int
    leaks: int
    step: int
    """Step from which training went on."""
    steps: int
    tokens: int
    """Tokens that were read again."""
    positions: int
    """Positions of the order whose rows changed."""
    kept: dict[str, str]
    """Kept aggregate -> digest."""
    tombstones: int
    model: str
    """Digest of the new model, with its metrics."""
    removed: tuple[str, ...]
    shared: tuple[str, ...]
    """Artifacts with the documents that other runs use, which stay."""
    other_runs: tuple[str, ...]
    made: tuple[str, ...]
    unfinished: tuple[str, ...] = ()
    """Builds that had not ended, here or in the store, and artifacts that were set aside, which may hold a document."""
    store: str | None = None
    """Address of the object store of the root."""
    retention: tuple[str, ...] = ()
    """What keeps objects of the store after their deletion, as sentences."""
    stays: tuple[str, ...] = ()
    """What the store refused to delete, as sentences."""


def commitment(salt: str, text: str) -> str:
    """Return the commitment to a text: 64 hexadecimal digits."""
    return blake3.blake3(bytes.fromhex(salt) + text.encode()).hexdigest()


def certified(path: Path, salt: str, texts: list[Path]) -> list[Path]:
    """Return those of the files whose whole content is a text that the certificate at `path` names.

    Raises InputError for a missing file or a salt that is none, and IntegrityError for a changed certificate.
    """
    for text in texts:
        if not text.is_file():
            raise InputError(f"{text}: no such file; name files with the text of one document each")
    try:
        bytes.fromhex(salt)
    except ValueError:
        raise InputError(f"--salt {salt}: not the hexadecimal digits that `bessemer data forget` printed") from None
    try:
        named = read_sealed(path, CERTIFICATE_LOST)["commitments"]
    except (FileNotFoundError, KeyError) as error:
        raise InputError(f"{path}: no such certificate; they are in {FORGOTTEN}/ under a root") from error
    # Not by `read_text`, which translates ends of lines.
    return [text for text in texts if commitment(salt, text.read_bytes().decode(errors="replace")) in named]


def write_certificate(root: Path, certificate: Certificate) -> Path:
    """Write both forms under the root, and in the object store behind it; return the path of the page."""
    path = root / FORGOTTEN / f"{certificate.after}.json"
    shown = page(certificate).encode()
    write_sealed(path, asdict(certificate))
    write_atomically(path.with_suffix(".html"), shown)
    if (store := store_of(root)) is not None:
        put_file(root, store, path)
        store.put(f"{FORGOTTEN}/{certificate.after}.html", shown)
    return path.with_suffix(".html")


def page(certificate: Certificate) -> str:
    """Return the page: HTML without scripts."""
    one = certificate
    documents = f"{len(one.commitments):,} {'document' if len(one.commitments) == 1 else 'documents'}"
    traces = [*TRACES, *([STABLE_TRACE] if one.tombstones else ())]
    beyond = [sentence.format(store=one.store) for sentence in BEYOND_A_STORE] if one.store is not None else []
    sections = [
        (
            "What was removed",
            [
                f"{documents} of the run {one.before}, on {one.when}; {one.duplicates:,} of them because they were"
                f" near-duplicates of a requested one, and {one.promoted:,} near-duplicates took the place of a"
                " requested one.",
                f"{one.heldout:,} of them had been held out for evaluation; they held {one.leaks:,} passages of"
                " benchmarks, which stay in the benchmarks.",
            ],
        ),
        (
            "What the model is now",
            [
                f"The run {one.after} trained the model again from step {one.step:,} of {one.steps:,}: {one.tokens:,}"
                f" tokens. Up to there it had read none of the documents, which was checked row by row;"
                f" {one.positions:,} positions of its order are others."
                if one.tokens
                else f"The model of the run {one.after} is that of the run before, which had read none of the"
                " documents: without them its sequences are the same, byte for byte.",
                "Its weights and metrics are those of a training that never had the documents, given the recipe of the"
                " run and the kept aggregates. Anybody with the other data can repeat that training and compare the"
                f" digest: {one.model}.",
            ],
        ),
        ("What was deleted", list(one.removed) or ["Nothing: the files had been deleted before."]),
        (
            "What still holds a trace",
            [
                *traces,
                *(f"Kept: {name}, digest {digest}." for name, digest in sorted(one.kept.items())),
                *(f"Another run that sampled a document: {run}." for run in one.other_runs),
                *(f"Stays, since another run uses it: {name}." for name in one.shared),
                *(f"Made from the model or the documents before: {name}." for name in one.made),
                *(
                    f"A build that had not ended, or an artifact that was set aside, and may hold a document: {name}."
                    for name in one.unfinished
                ),
                *(f"Stays: {sentence}." for sentence in one.stays),
            ],
        ),
        ("What this does not reach", [*BEYOND, *one.retention, *beyond]),
        ("Commitments", list(one.commitments)),
    ]
    body = "".join(
        f"<h2>{html.escape(title)}</h2><ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"
        for title, lines in sections
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Certificate of a removal</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "li{overflow-wrap:anywhere}</style>"
        f"<h1>Certificate of a removal</h1>{body}</html>\n"
    )
