"""Settings of the dedup stage."""

from typing import Annotated, Literal

from pydantic import Field

from model.config import EXPERT, RUNTIME, Reach
from tasks.common.config import ONE_OR_MORE, StrictConfig
from tasks.execution.machines import Machines


class DedupConfig(StrictConfig):
    """What counts as a duplicate, and which copy is kept."""

    threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """True Jaccard similarity of the shingle sets (0 to 1) from which on the later copy is removed."""
    shingle_words: Annotated[int, EXPERT] = Field(default=5, ge=1, le=32)
    """Words in a shingle; in scripts without spaces a character is a word."""
    bands: Annotated[int, EXPERT] = Field(default=16, ge=1, le=256)
    """Bands of the signature; two documents are compared when they agree in at least one whole band."""
    rows_per_band: Annotated[int, EXPERT] = Field(default=7, ge=1, le=64)
    """Hash values in a band; bands x rows is the length of a signature."""
    permutation_seed: Annotated[int, EXPERT] = Field(default=1, ge=0, lt=2**32)
    """Seed of the hash permutations, as in datasketch's `MinHash(seed=...)`."""
    survivors_per_bucket: Annotated[int, EXPERT] = Field(default=64, ge=1, le=4096)
    """Kept documents of one bucket with which a further one is compared, in order of their rank; bounds the work where
    thousands of different documents share a template."""
    priorities: dict[str, int] = Field(default_factory=dict)
    """Rank of each source: of two copies the one from the source with the smaller rank is kept. Sources without a rank
    come last. Within a rank the longer text is kept, then the smaller doc_id."""
    against: Annotated[tuple[str, ...], ONE_OR_MORE, RUNTIME, Reach.EARLIER] = ()
    """Earlier runs whose kept documents count as kept: new copies of them are removed, and the ledger names the old
    document. A run id, the folder of a dedup artifact, or its identity; their contents decide the result."""
    repeated_lines: Literal["keep", "line", "paragraph"] = "keep"
    """`line` or `paragraph`: those that occur again, in the same document or another, are kept where they are first
    (CCNet); off by default."""
    repeated_line_words: Annotated[int, EXPERT] = Field(default=8, ge=1, le=10_000)
    """Words from which on a line or paragraph counts as repeated; shorter ones are kept, however often they occur."""
    repeated_bytes: Annotated[int | None, EXPERT] = Field(default=None, ge=100)
    """Bytes from which on a passage that occurs again, byte for byte, is kept where it is first only (Lee et al.); null
    keeps all."""
    planted_pairs: Annotated[int, EXPERT] = Field(default=300, ge=0, le=100_000)
    """Near-copies made from the run's own documents to measure recall; they never compete with documents."""
    wipe_out_limit: Annotated[float, RUNTIME, EXPERT] = Field(default=0.9, gt=0.0, le=1.0)
    """Largest share of a source's documents (0 to 1) that may be removed before the stage stops. Sources of fewer than
    100 documents are not guarded; the run's terminal summary and page name a source that ends empty."""
    wipe_out_overrides: Annotated[dict[str, float], RUNTIME, EXPERT] = Field(default_factory=dict)
    """Source name -> its own drop-rate limit (0 to 1)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the run; decides from which documents the near-copies are made."""
    memory_bytes: Annotated[int, RUNTIME, EXPERT] = Field(default=2 * 1024**3, ge=1024)
    """Memory for sorting the keys of a band, in bytes; with less of it the keys are sorted in more passes."""
    threads: Annotated[int, RUNTIME, EXPERT] = Field(default=2, ge=1, le=1024)
    """Threads (or processes) that work on parts at the same time."""
    machines: Annotated[Machines, RUNTIME, EXPERT] = Machines()
    """Where parts are processed: this machine, or a cluster."""

    @property
    def signature_length(self) -> int:
        """Return the number of hash values in a signature."""
        return self.bands * self.rows_per_band
