"""Held-out text of two runs whose data differ: what both held out, less what one was trained on a copy of."""

import json
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


def test_a_document_that_lost_a_line_to_another_is_no_copy_of_it(foundry: Path, build, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    shared = "Every smith of this town paid the same price for a plate of steel.\n"
    for note in sorted((foundry / "notes").glob("note-0*.txt")):
        (notes / note.name).write_text(note.read_text() + shared)
    settings = ("decontaminate.heldout_share=0", "dedup.repeated_lines=line")
    recipe = tmp_path / "foundry.toml"
    recipe.write_text((foundry / "foundry.toml").read_text().replace("{recipe}/cloze", f"{foundry}/cloze"))
    artifacts = build("decontaminate", load_recipe(recipe, tmp_path, settings), tmp_path)
    cuts = [row for row in artifacts["dedup"].table("ledger").to_pylist() if row["rule"] == "repeated_line"]
    survivors = {json.loads(row["evidence"])["survivor"] for row in cuts}
    held = frozenset(("notes", bytes.fromhex(survivor), 0, 4) for survivor in survivors)
    run = HeldOut({METRIC: dict.fromkeys(held, 8.0)}, artifacts["dedup"], artifacts["decontaminate"])
    assert held
    assert fair_documents(run, run, METRIC) == held
