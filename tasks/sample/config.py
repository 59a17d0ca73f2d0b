"""What a recipe says about its sources: where they are, what they hold, and how much of each training should read."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from tasks.config import RUNTIME, StrictConfig

WEIGHT_TOLERANCE = 1e-6

Format = Literal["auto", "jsonl", "parquet", "text", "markdown", "html", "code"]
Content = Literal["text", "markdown", "html", "code"]


class Source(StrictConfig):
    """One named source of documents."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The source's name in every table and report; part of every doc_id."""

    paths: Annotated[tuple[str, ...], RUNTIME] = Field(min_length=1)
    """Local files, folders, or patterns with `*`, `?`, `[...]` and `**`; folders are read recursively, without hidden
    files. The files' contents decide the result, not where they lie."""

    format: Format = "auto"
    """How the files are read; `auto` goes by each file's suffix and passes over suffixes it does not know."""

    content: Content = "text"
    """What the text field of a jsonl or parquet record holds; tells clean how to treat it."""

    weight: float = Field(gt=0, allow_inf_nan=False)
    """Share of the training tokens that should come from this source (0 to 1; all sources together 1)."""

    language: str | None = Field(default=None, min_length=2, max_length=16)
    """Language of the source as an ISO 639 code (`en`, `zh`), where it is one language; null when unknown or mixed."""

    text_field: str = "text"
    """Field (jsonl) or column (parquet) that holds the text."""

    id_field: str | None = None
    """Field or column that identifies a record; without it the path and record number do, and then splitting the
    input into other files changes the ids."""

    exclude: Annotated[tuple[str, ...], RUNTIME] = ()
    """Patterns of root-relative paths that are left out; `*` also crosses folders, `**/tests/**` works."""

    max_file_bytes: int = Field(default=64 * 1024**2, gt=0)
    """Largest file (formats of one document per file), line (jsonl) or value (parquet) read as one document, in bytes
    after decompression; a larger one is rejected."""

    @field_validator("paths", "exclude", mode="before")
    @classmethod
    def _one_path_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class SampleConfig(StrictConfig):
    """Sources and how much of them to keep."""

    sources: tuple[Source, ...] = Field(min_length=1)
    """The sources; their order is the order of documents."""

    budget_tokens: int = Field(gt=0)
    """Tokens that training will read, over all sources and epochs."""

    bytes_per_token: float = Field(default=3.5, gt=0, le=100)
    """UTF-8 bytes of text expected per token, until the vocabulary exists."""

    slack: float = Field(default=2.0, ge=1, le=1000)
    """How many times the needed bytes are kept, as cleaning and deduplication will remove some (a factor)."""

    limit: float = Field(default=1.0, gt=0, le=1)
    """Largest share of each source's documents that is kept, for small trial runs (0 to 1)."""

    part_bytes: int = Field(default=64 * 1024**2, ge=1024)
    """Uncompressed text per part, in bytes; the unit of parallel work and of resuming."""

    max_reject_share: float = Field(default=0.01, ge=0, le=1)
    """Share of all records that may be rejected before the stage stops (0 to 1)."""

    normalise_weights: bool = False
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
    def _weights_sum_to_one(self) -> "SampleConfig":
        total = sum(source.weight for source in self.sources)
        if not self.normalise_weights and abs(total - 1) > WEIGHT_TOLERANCE:
            given = ", ".join(f"{source.name} {source.weight:g}" for source in self.sources)
            raise ValueError(
                f"the weights of the sources must sum to 1 and sum to {total:g} ({given}); change them, or set"
                f" normalise_weights = true to have each divided by the sum"
            )
        return self
