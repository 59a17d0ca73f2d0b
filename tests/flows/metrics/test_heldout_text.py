"""Held-out text of two runs whose data differ: what both held out, less what one was trained on a copy of."""

from pathlib import Path

from flows.metrics.heldout import HeldOut, fair_documents, is_same_text, mean_of_sources
from flows.recipe.load import load_recipe
from tasks.artifacts.artifact import Artifact

METRIC = "bits_per_byte"


def ids_by_file(sample: Artifact) -> dict[str, bytes]:
    return {Path(row["origin"]["path"]).name: row["doc_id"] for row in sample.table("documents").to_pylist()}


def test_a_document_of_which_the_other_learnt_a_copy_does_not_count(foundry: Path, build, tmp_path: Path) -> None:
    def until_decontaminate(*settings: str) -> dict[str, Artifact]:
        return build("decontaminate", load_recipe(foundry / "foundry.toml", tmp_path, settings), tmp_path)

    base, loose = (
        until_decontaminate("decontaminate.heldout_share=0"),
        until_decontaminate("decontaminate.heldout_share=0", "dedup.threshold=1.0"),
    )
    ids = ids_by_file(base["sample"])
    stayed = {row["doc_id"] for row in loose["decontaminate"].table("documents").to_pylist()}
    dropped = {row["doc_id"] for row in base["dedup"].table("ledger").to_pylist()}
    (survivor, copy) = sorted((ids["near-twin.txt"], ids["near-twin-longer.txt"]), key=lambda one: one in dropped)
    assert copy in dropped & stayed
    bits = {METRIC: {("notes", ids["note-00.txt"], 0, 4): 8.0, ("notes", survivor, 0, 4): 4.0}}

    def run(artifacts: dict[str, Artifact]) -> HeldOut:
        return HeldOut(bits, artifacts["dedup"], artifacts["decontaminate"])

    assert is_same_text(run(base), run(base))
    assert len(fair_documents(run(base), run(base), METRIC)) == 2
    assert not is_same_text(run(base), run(loose))
    for one, other in ((base, loose), (loose, base)):
        fair = fair_documents(run(one), run(other), METRIC)
        assert fair == {("notes", ids["note-00.txt"], 0, 4)}
        assert mean_of_sources(run(one), METRIC, fair) == 2.0
