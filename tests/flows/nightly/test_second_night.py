"""New data compared with what an earlier run kept: `why` says of a copy which old document stays."""

import io
from pathlib import Path

from rich.console import Console

from flows.recipe.load import load_recipe
from flows.reports.terminal import print_document_history
from flows.runs.document_history import histories_of
from flows.runs.run_documents import find_documents
from tasks.artifacts.build import RunContext
from tasks.clean.stage import build_clean
from tasks.dedup.stage import build_dedup
from tasks.sample.stage import build_sample

TONIGHT = """
format = 1
name = "tonight"
budget_tokens = "40K"
[[sources]]
name = "tonight"
paths = ["{recipe}/tonight"]
format = "text"
weight = 1.0
language = "en"
[dedup]
against = ["%s"]
"""


def test_why_names_the_old_document_of_a_new_copy(foundry: Path, root: Path, tmp_path: Path) -> None:
    (before,) = (root / "artifacts" / "dedup").iterdir()
    (tmp_path / "tonight").mkdir()
    old, new = (foundry / "notes" / "note-07.txt").read_text(), (foundry / "notes" / "note-08.txt").read_text()
    (tmp_path / "tonight" / "again.txt").write_text(old)
    (tmp_path / "tonight" / "other.txt").write_text(" ".join(reversed(new.split())) + ".")
    (tmp_path / "tonight.toml").write_text(TONIGHT % before.name)
    recipe, context = load_recipe(tmp_path / "tonight.toml", root), RunContext(root, "run")
    sampled = build_sample(context, recipe.sample)
    cleaned = build_clean(context, sampled, recipe.clean)
    artifacts = {"sample": sampled, "clean": cleaned, "dedup": build_dedup(context, cleaned, recipe.dedup)}

    (doc_id,) = find_documents(artifacts, "again.txt")
    (life,) = histories_of(artifacts, [doc_id])
    assert life.outcome == "dropped in dedup by rule `exact_duplicate_of_earlier`"
    stays = life.events[-1]["survivor"]
    assert (stays["path"], stays["source"], stays["earlier"]) == ("note-07.txt", "notes", before.name)
    screen = Console(file=io.StringIO(), width=400, color_system=None)
    print_document_history(life, screen)
    reported = screen.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert f"kept: notes: note-07.txt record 0, in the earlier dedup artifact {before.name}: {old[:40]}" in reported

    (other,) = find_documents(artifacts, "other.txt")
    assert histories_of(artifacts, [other])[0].outcome == "in progress"

    before.rename(tmp_path / "moved away")
    gone = histories_of(artifacts, [doc_id])[0].events[-1]["survivor"]
    assert gone == {"doc_id": stays["doc_id"], "earlier": before.name}
