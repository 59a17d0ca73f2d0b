"""Settings of the decontaminate stage."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from model.config import EXPERT, RUNTIME, Reach
from tasks.artifacts.tables.rows import HELDOUT, LANGUAGE
from tasks.common.config import ONE_OR_MORE, StrictConfig
from tasks.execution.machines import Machines

RARITY, HELDOUT_DRAW = "rarity", "heldout_draw"
"""The tables of how common the words of benchmarks are, and of what is held out, which later runs may keep."""


class BenchmarkFields(StrictConfig):
    """Which keys of a benchmark's records hold what; `a.b` is the key b of the object under a."""

    id: Annotated[str | tuple[str, ...], EXPERT] = "id"
    """Key of the item's name, unique within the benchmark, or several keys that name it together; empty where records
    are named by their number."""
    context: Annotated[tuple[str, ...], ONE_OR_MORE] = ("context", "passage", "question", "prompt")
    """Keys whose texts, where present, make up the context, joined by line breaks in this order."""
    choices: str | tuple[str, ...] = "choices"
    """Key of the list of choices, or the keys of one choice each; absent or null where the answer is free text. Beside
    `choices.text` a list `choices.label` names the choices for answers, as in ARC."""
    continuation: Annotated[str, EXPERT] = ""
    """Key of a text that follows every choice; empty where none does."""
    answer: str = "answer"
    """Key of the right answer: the index of a choice, a choice's text, its letter, or free text, of which there may be
    a list."""
    match_text: Annotated[str, EXPERT] = "match_text"
    """Key of the text to search for in documents; where absent, the context."""
    lang: Annotated[str, EXPERT] = "lang"
    """Key of the language; absent where unknown."""
    template: Annotated[str, EXPERT] = ""
    """The context as it is asked, with `{key}` for the text under a key; empty: the context's texts by themselves.
    Documents are searched for the texts under the keys of `context`, never for a template's own words."""
    words: Annotated[dict[str, dict[str, str]], EXPERT] = Field(default_factory=dict)
    """Key -> value under it -> the words for it in `template`: `cause` -> `because`."""
    labels: Annotated[dict[str, str], EXPERT] = Field(default_factory=dict)
    """Answer in the file -> its words, which are then the choices, in this order: `1` -> `yes`."""
    no_answer: Annotated[str, EXPERT] = ""
    """The right answer where a record has an empty list of answers; empty: such a record is an error."""
    only: Annotated[dict[str, str], EXPERT] = Field(default_factory=dict)
    """Key -> value that it must have; other records belong to another benchmark."""
    each: Annotated[str, EXPERT] = ""
    """Keys of lists within records, with dots between, whose entries are the items: `data.paragraphs.qas`. An entry is
    found under the name of its list, next to the fields around it: `paragraphs.context`."""
    columns: Annotated[tuple[str, ...], EXPERT] = ()
    """Names of the columns of a table (.tsv, .csv) without a first line of names."""
    layout: Annotated[Literal["", "record"], EXPERT] = ""
    """`record`: as in ReCoRD, whose choices are entities of the passage in place of `@placeholder`."""


class Benchmark(StrictConfig):
    """One benchmark file: JSON lines, a JSON document with `fields.each`, a table, or lines of text; plain or gzip."""

    name: str = Field(min_length=1)
    """Name in LEAKS and SCORES."""
    path: Annotated[Path, RUNTIME]
    """The file (.jsonl, .json, .tsv, .csv, each also .gz); its content, not its path, is part of the identity."""
    answers_path: Annotated[Path | None, RUNTIME, EXPERT] = None
    """A second file with the right answers, a line for each line of `path` (parallel texts for translation): keys
    `line` and `answer`."""
    adapter: Annotated[str | None, EXPERT] = None
    """A field map that ships, by the name of its benchmark, or `generic`; default: the map of the benchmark's own name
    where there is one, else `generic`."""
    fields: BenchmarkFields | None = None
    """Where in a record the parts of an item are, for a benchmark without an adapter."""


class DecontaminateConfig(StrictConfig):
    """What counts as a leak, what happens to it, and how much text is held out."""

    benchmarks: tuple[Benchmark, ...] = ()
    """Benchmarks that the model will be evaluated on."""
    ngram: Annotated[int, EXPERT] = Field(default=13, ge=5, le=64)
    """Words in a row that a document must share with an item to be a leak; shorter texts count as a whole."""
    unspaced_chars: Annotated[int, EXPERT] = Field(default=40, ge=1, le=1000)
    """Characters in a row that a document must share with an item in a script without spaces to be a leak; half of its
    only context is enough too."""
    short_words: Annotated[int, EXPERT] = Field(default=7, ge=1, le=64)
    """Words from which on a text of an item's context is evidence as a whole. Of 19,000 short texts of 26 benchmarks,
    none of 7 words or more occurred by chance in 117 MB of prose, documentation and chat."""
    common_documents: Annotated[int, EXPERT] = Field(default=10, ge=1)
    """Words in more documents than this, and in more than `common_share` of them, are common: no evidence alone.
    Below, they count less by the logarithm of the documents."""
    common_share: Annotated[float, EXPERT] = Field(default=0.001, ge=0.0, le=1.0)
    """Share of the run's documents (0 to 1) above which words are common."""
    keep: Annotated[str | None, RUNTIME, Reach.EARLIER, EXPERT] = None
    """A run whose counts of how common the benchmarks' words are in its documents are used instead of new ones; null
    counts anew."""
    keep_heldout: Annotated[str | None, RUNTIME, Reach.EARLIER, EXPERT] = None
    """A run whose held-out documents are held out again, without those that are gone; new documents are held out where
    their numbers in the draw are as small. Null draws anew."""
    template_items: Annotated[int, EXPERT] = Field(default=20, ge=1)
    """Words in more items than this are their template, not one item's text; a passage of more than 40 words counts
    once."""
    similar_share: Annotated[float, EXPERT] = Field(default=0.8, gt=0.5, le=1.0)
    """Share of a text's words, in order and apart from numbers, from which on a text with other changes is the same."""
    planted_per_form: Annotated[int, EXPERT] = Field(default=50, ge=0, le=10_000)
    """Items injected into the run's own documents in each of twelve forms, to measure recall and precision of the
    search; injected text never reaches the output."""
    mode: Literal["cut", "drop", "flag"] = "cut"
    """cut: leaks and a window around them are cut out; drop: the document is dropped; flag: it is kept and LEAKS names
    it."""
    window_chars: Annotated[int, EXPERT] = Field(default=200, ge=0, le=100_000)
    """Characters cut out on each side of a leak, plus the rest of a word at the cut."""
    min_piece_chars: Annotated[int, EXPERT] = Field(default=200, ge=1, le=100_000)
    """Pieces between cuts with fewer characters are dropped."""
    max_pieces: Annotated[int, EXPERT] = Field(default=10, ge=1, le=30_000)
    """A document that would be cut into more pieces than this is dropped."""
    heldout_share: float = Field(default=0.02, ge=0.0, le=0.5)
    """Share of each source's documents (0 to 1) that is held out for evaluation."""
    heldout_min_documents: Annotated[int, EXPERT] = Field(default=4, ge=0)
    """Fewest documents held out from each source, though never more than a fifth of its documents."""
    heldout_max_documents: Annotated[int, EXPERT] = Field(default=2000, ge=0)
    """Most documents held out from each source."""
    heldout_max_bytes: Annotated[int, EXPERT] = Field(default=4_000_000, ge=0)
    """Most UTF-8 bytes held out from each source; a fifth of the source's bytes is a limit too."""
    seed: int = Field(default=0, ge=0)
    """Seed of the run; decides which documents are held out."""
    workers: Annotated[int, RUNTIME, EXPERT] = Field(default=2, ge=1, le=1024)
    """Threads (or processes) that work on parts at the same time."""
    machines: Annotated[Machines, RUNTIME, EXPERT] = Machines()
    """Where parts are processed: this machine, or a cluster."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> "DecontaminateConfig":
        names = [benchmark.name for benchmark in self.benchmarks]
        taken = [name for name in names if name.startswith((HELDOUT, LANGUAGE))]
        if taken:
            raise ValueError(f"evaluate has scores of held-out text under such names; rename {', '.join(taken)}")
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise ValueError(f"benchmark names must differ; used twice: {', '.join(double)}")
        return self
