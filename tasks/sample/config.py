"""Configuration of the sample stage: where the sources are, what they contain, and how much training reads of each."""

import codecs
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from model.config import EXPERT, RUNTIME, Reach
from tasks.common.config import ONE_OR_MORE, StrictConfig, check_epochs

WEIGHT_TOLERANCE = 1e-6

GOOD_EPOCHS = 4.0
"""Repetition up to here is almost as good as new text (Muennighoff et al. 2023, arXiv 2305.16264)."""

Format = Literal[
    "auto", "jsonl", "csv", "parquet", "arrow", "warc", "mediawiki", "text", "markdown", "wikitext", "html", "code"
]
SOURCE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"

Content = Literal["text", "markdown", "wikitext", "html", "code"]

ONE_DOCUMENT_A_FILE: frozenset[str] = frozenset(get_args(Content))
"""Formats of files that are one document each."""

NO_CHARACTER_SETS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"})
"""Codecs of Python that no file is written in: they decode nothing, or to halves of surrogate pairs."""


class Thread(StrictConfig):
    """How the messages of a conversation are linked: a source with this table reads threads, not messages."""

    thread_field: str = "thread_id"
    """Field that all messages of one thread share; it becomes the document's id."""

    id_field: str = "id"
    """Field that identifies a message."""

    reply_field: str = "parent_id"
    """Field with the id of the message that this one replies to; empty or absent in a thread's first message."""

    author_field: str | None = None
    """Field whose value and a colon begin each message; null for bare messages."""

    paths: Literal["longest", "all"] = "longest"
    """`longest` keeps the longest chain of replies and omits the rest of the tree (OPT, Zhang et al. 2022, section
    2.3); `all` keeps every message, replies below the message that they reply to."""


class Source(StrictConfig):
    """One named source of documents."""

    name: str = Field(min_length=1, max_length=64, pattern=SOURCE_NAME)
    """The source's name in every table and report; part of every doc_id."""

    paths: Annotated[tuple[str, ...], ONE_OR_MORE, RUNTIME, Reach.SOURCE] = Field(min_length=1)
    """Files, folders, or patterns with `*`, `?`, `[...]` and `**`, on this machine or by URI (`s3://`, `gs://`,
    `http://`, `https://`, `hf://`, `file://`); folders are read recursively, without hidden files. The contents of
    files decide the result, not their location. A file is read up to the length that it has when a run lists it; a last
    line that is still being written is read as it is, and whole by the next run."""

    format: Format = "auto"
    """How the files are read; `auto` decides by each file's suffix and skips unknown suffixes. `mediawiki` is the XML
    export of a wiki (`pages-articles.xml.bz2`), of which each article is a document."""

    content: Content = "text"
    """What the text field of a record (jsonl, csv, parquet, arrow) contains; decides how clean treats it."""

    encoding: str = "auto"
    """Encoding of the files, by a name that Python knows (`cp1251`, `gbk`, `utf-16`), for formats text, markdown, code,
    jsonl and csv; html where a page is not UTF-8. `auto`: UTF-8, or by a byte order mark, or where most of a file is
    not UTF-8 the encoding in which its text is most probable; files that are clear in none are rejected."""

    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Share of the training tokens that should come from this source (0 to 1; all sources together 1). 0: a phase of
    training (`train.phases`) reads it, and it is kept whole. Null for all sources where `temperature` decides."""

    tokens: Annotated[int | None, EXPERT] = Field(default=None, gt=0)
    """Tokens in the source, if known; else they are estimated from its bytes."""

    language: str | None = Field(default=None, min_length=2, max_length=16)
    """Language of the source as an ISO 639 code (`en`, `zh`), where it is one language; null when unknown or mixed."""

    licence: Annotated[str | None, RUNTIME] = Field(default=None, min_length=2, max_length=200)
    """Licence of the text, as an SPDX expression (`CC-BY-SA-4.0`, `MIT OR Apache-2.0`), or `public-domain`; the model
    card lists it, and an export under a conflicting licence is refused. It changes no byte."""

    text_field: str = "text"
    """Field (jsonl) or column (csv, parquet, arrow) with the text."""

    id_field: str | None = None
    """Field, column or WARC header that identifies a record; without it the path and record number do, and then
    splitting the input into other files changes the ids."""

    url_field: Annotated[str | None, EXPERT] = None
    """Field or column with the address that a record came from, kept in its `meta`; WARC records have their own."""

    thread: Annotated[Thread | None, EXPERT] = None
    """For jsonl: read the records as messages of threads, one document a thread."""

    exclude: Annotated[tuple[str, ...], ONE_OR_MORE, RUNTIME] = ()
    """Patterns of root-relative paths that are left out; `*` also crosses folders, `**/tests/**` works."""

    only: Annotated[tuple[str, ...], RUNTIME, EXPERT] = ()
    """Root-relative paths that are read, of all that `paths` names; empty: all of them. A nightly run names the new
    files, so that documents keep the ids that they have in the whole folder."""

    max_file_bytes: Annotated[int, EXPERT] = Field(default=64 * 1024**2, gt=0)
    """Largest file (formats of one document per file), record (jsonl, csv, warc) or value (parquet, arrow) read as
    one document, in bytes after decompression; a larger one is rejected."""

    max_unpacked_bytes: Annotated[int, EXPERT] = Field(default=1024**4, gt=0)
    """Bytes that a compressed file (or a column of a parquet row group) may unpack to; the rest is not read, and
    rejected as one record (of a row group, each row)."""

    max_unpacked_ratio: Annotated[float, EXPERT] = Field(default=200.0, ge=1, allow_inf_nan=False)
    """Bytes that a stored byte of it may unpack to, after the first GiB; text rarely exceeds 20, and a file made to
    fill memory or disk exceeds 1000."""

    @field_validator("encoding")
    @classmethod
    def _encoding_is_known(cls, value: str) -> str:
        try:
            is_text = value == "auto" or (
                codecs.lookup(value).name not in NO_CHARACTER_SETS and "a".encode(value).decode(value) == "a"
            )
        except (LookupError, UnicodeError):
            is_text = False
        if not is_text:
            raise ValueError(f"`{value}` is no encoding of text that Python knows; use auto, utf-8, cp1251, gbk, ...")
        return value


DocumentId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class SampleConfig(StrictConfig):
    """Sources and how much of them to keep."""

    sources: tuple[Source, ...] = Field(min_length=1)
    """The sources; their order is the order of documents."""

    budget_tokens: int = Field(gt=0)
    """Tokens that training will read, over all sources and epochs."""

    bytes_per_token: Annotated[float, EXPERT] = Field(default=3.5, gt=0, le=100)
    """UTF-8 bytes of text expected per token, until the vocabulary exists."""

    tokens_per_byte: Annotated[dict[str, float], EXPERT] = Field(default_factory=dict)
    """Source -> tokens that reach training per UTF-8 byte of text read, as measured by a pilot run through the later
    stages; sources without one use `bytes_per_token`."""

    slack: float = Field(default=2.0, ge=1, le=1000)
    """How many times the needed text is kept, since cleaning and deduplication remove some (a factor). With
    `tokens_per_byte` from a pilot, which includes that, 1.2 is enough."""

    temperature: float | None = Field(default=None, ge=1, le=100)
    """Instead of weights: shares in proportion to tokens ^ (1 / temperature). 1 is by size, 3.33 is mT5's exponent of
    0.3 (Xue et al. 2021), 100 nearly equal shares."""

    max_epochs: float = Field(default=GOOD_EPOCHS, gt=0, le=1000)
    """Most times that training may read a source; the tokens it then lacks go to the others by weight (UniMax)."""

    allow_many_epochs: Annotated[bool, RUNTIME, EXPERT] = False
    """Whether `max_epochs` may be above 16, where one more epoch is worth less than two fifths of new text."""

    limit: float = Field(default=1.0, gt=0, le=1)
    """Largest share of each source's documents that is kept, for small trial runs (0 to 1)."""

    keep: Annotated[str | None, RUNTIME, Reach.EARLIER, EXPERT] = None
    """A run whose measured sizes of sources are used instead of new ones, so that rates stay when files are added; null
    measures. Sources that it does not have are measured."""

    exclude_documents: Annotated[tuple[DocumentId, ...], EXPERT] = ()
    """Ids of documents that are left out as if they were not in their files; `bessemer data forget` writes them."""

    part_bytes: Annotated[int, EXPERT] = Field(default=64 * 1024**2, ge=1024)
    """Uncompressed text per part, in bytes; the unit of parallel processing and of resuming."""

    workers: Annotated[int, RUNTIME, EXPERT] = Field(default=1, ge=1, le=1024)
    """Processes of this machine that read files at the same time; an untrusted recipe is read by one. A file is read by
    one process, and several small files are one piece of work."""

    max_reject_share: Annotated[float, RUNTIME, EXPERT] = Field(default=0.01, ge=0, le=1)
    """Share of all records that may be rejected before the stage stops (0 to 1)."""

    normalise_weights: Annotated[bool, RUNTIME, EXPERT] = False
    """Whether weights may sum to something other than 1 and are then divided by their sum."""

    seed: int = Field(default=0, ge=0)
    """The run's seed; decides which documents are selected."""

    @model_validator(mode="after")
    def _names_differ(self) -> "SampleConfig":
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"every source needs its own name, and {', '.join(twice)} is used more than once")
        return self

    @model_validator(mode="after")
    def _weights_decide_the_shares(self) -> "SampleConfig":
        without = [source.name for source in self.sources if source.weight is None]
        if self.temperature is None and without:
            raise ValueError(
                f"{', '.join(without)} has no weight; give every source a share of the training tokens, or none and"
                f" set temperature (1 for shares by size)"
            )
        if self.temperature is not None and len(without) < len(self.sources):
            given = ", ".join(source.name for source in self.sources if source.weight is not None)
            raise ValueError(f"temperature sets the shares by size, but {given} has a weight; remove one or the other")
        weights = {source.name: source.weight for source in self.sources if source.weight is not None}
        total = sum(weights.values())
        if weights and not self.normalise_weights and abs(total - 1) > WEIGHT_TOLERANCE:
            given = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
            raise ValueError(
                f"the weights of the sources must sum to 1 and sum to {total:g} ({given}); change them, or set"
                f" normalise_weights = true to have each divided by the sum"
            )
        check_epochs(self.max_epochs, allow_many=self.allow_many_epochs)
        return self

    @model_validator(mode="after")
    def _measured_sources_exist(self) -> "SampleConfig":
        names = {source.name for source in self.sources}
        for name, yielded in self.tokens_per_byte.items():
            if name not in names:
                raise ValueError(f"tokens_per_byte names {name}, and the sources are {', '.join(sorted(names))}")
            if not 0 < yielded <= 4:
                raise ValueError(f"tokens_per_byte of {name} is {yielded:g}; it must be above 0 and at most 4")
        return self
