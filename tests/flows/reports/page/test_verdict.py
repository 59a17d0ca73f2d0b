"""What came out of a run, in words: on the page, and as the last screen of a terminal."""

import io
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.metrics.heldout import describe_repeated_text, mean_words
from flows.metrics.run_metrics import collect_metrics
from flows.reports.page.page import write_page
from flows.reports.summary import print_outcome
from flows.reports.verdict import Verdict, verdict
from model.checksummed_json import write_sealed


def words(made: Any, **changes: Any) -> Verdict:
    record = {**made.record, **changes}
    return verdict(record, collect_metrics(record), made.root)


def test_a_run_in_words(made_run: Any) -> None:
    found = words(made_run)
    assert found.made == "A language model, trained on 640 tokens of 2 sources. The run took 1 min 35 s."
    assert found.quality.startswith(
        "As the mean of the sources it takes 2.250 bits for a byte of new text: 31% less than the compressor xz (3.250)"
        " and 18% less than a 5-gram counted on the same text (2.750). It learnt more from its text than counting short"
        " sequences gives. cloze, zero-shot: 50% ± 20% of 2 items right."
    ), "2.25 / 3.25 = .692 and 2.25 / 2.75 = .818"
    assert found.dropped == (
        "Of 32 documents read, 17 (53%) were kept; the others: 1 not needed for the mixture, 4 duplicates, 7 dropped by"
        " rules (gopher_words_min 4, gopher_stop_words 2, too_many_pieces 1), 1 unreadable, 2 held out to measure the"
        " model."
    )
    assert [remark.split(":")[0] for remark in found.attention] == [
        "training read another mixture than the recipe asks for"
    ]


def test_an_empty_file_is_called_so(made_run: Any) -> None:
    findings = collect_metrics(made_run.record)
    documents = {**findings["conservation"]["documents"], "rejected": 3, "empty": 2}
    findings = {**findings, "conservation": {"documents": documents, "balanced": True}}
    said = verdict(made_run.record, findings, made_run.root).dropped
    assert "too_many_pieces 1), 1 unreadable, 2 empty, 2 held out" in said


def test_figures_that_are_no_shares_of_right_items_are_named(made_run: Any) -> None:
    row = {"task": "news", "shots": 0, "n": 200, "note": "", "stderr": 0.01, "subset": "all", "value": 0.12}
    findings = {**collect_metrics(made_run.record), "scores": [{**row, "metric": "rouge_l"}]}
    said = verdict(made_run.record, findings, made_run.root).quality
    assert said.endswith(" news, zero-shot: rouge_l of 12% ± 2% over 200 items.")


def test_a_figure_without_an_error_is_never_clearly_better_than_guessing(made_run: Any) -> None:
    row = {"task": "one", "shots": 0, "n": 1, "note": "chance 0.250", "stderr": None, "subset": "all", "value": 1.0}
    findings = {**collect_metrics(made_run.record), "scores": [{**row, "metric": "acc"}]}
    said = verdict(made_run.record, findings, made_run.root).quality
    assert said.endswith(" one, zero-shot: 100% of 1 item right, guessing gives 25%, so this is not clearly better.")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        # Wilson: 1.96^2 / (3 + 1.96^2) = .56.
        (0.0, "0% (0% to 56%) of 3 items right, guessing gives 25%, so this is not clearly better."),
        (1.0, "100% (44% to 100%) of 3 items right, guessing gives 25%."),
    ],
)
def test_items_that_are_all_wrong_or_all_right_are_not_certain(made_run: Any, value: float, said: str) -> None:
    row = {"task": "t", "metric": "acc", "shots": 0, "n": 3, "note": "chance 0.250", "stderr": 0.0, "subset": "all"}
    findings = {**collect_metrics(made_run.record), "scores": [{**row, "value": value}]}
    assert verdict(made_run.record, findings, made_run.root).quality.endswith(f" t, zero-shot: {said}")


def test_one_source_has_no_mean_of_sources(made_run: Any) -> None:
    findings = collect_metrics(made_run.record)
    (first, *_), (whole,) = (
        [line for line in findings["bits_per_byte"] if (line["source"] == "all") == is_all] for is_all in (False, True)
    )
    said = verdict(made_run.record, {**findings, "bits_per_byte": [first, {**first, "source": "all"}]}, made_run.root)
    assert said.quality.startswith(f"It takes {first['model']:.3f} bits for a byte of new text: ")
    assert mean_words([first, whole]) == "", "one source and its mean"
    assert mean_words(findings["bits_per_byte"]) == ", mean of the sources"


def test_held_out_text_that_training_read_is_named(make: Callable[..., Any], tmp_path: Path) -> None:
    made = make(tmp_path)
    assert "training read too" not in words(made).quality
    rows = [
        {"task": "heldout/books", "metric": "bits_per_byte", "value": 2.0, "note": "300 bytes, 90 tokens"},
        {"task": "heldout/web", "metric": "bits_per_byte", "value": 2.5, "note": "100 bytes, 30 tokens"},
        {
            "task": "heldout/books",
            "metric": "repeated_bits_per_byte",
            "value": 0.5,
            "note": "100 of 300 bytes, within passages of 16 tokens or more that training read",
        },
        {"task": "heldout/all", "metric": "new_bits_per_byte", "value": 2.6, "note": ""},
    ]
    said = describe_repeated_text(rows)
    findings = {**collect_metrics(made.record), "repeated_text": said}
    assert (
        "counting short sequences gives. 25% of the held-out text lies in passages of 16 tokens or more that training"
        " read too; of the text that is new, bits per byte are the model 2.600. cloze, zero-shot"
    ) in verdict(made.record, findings, made.root).quality


@pytest.mark.parametrize(
    ("xz", "ngram", "said"),
    [
        (3.0, 2.5, "learnt more from its text than counting"),
        (3.0, 2.0, "more than a compressor finds, and less than counting"),
        (2.0, 1.5, "A general compressor does better"),
        (2.25, None, "as many as the compressor xz (2.250). A general compressor does better"),
        (3.0, None, "25% less than the compressor xz (3.000)."),
    ],
)
def test_how_good_it_is_depends_on_both_baselines(made_run: Any, xz: float, ngram: float | None, said: str) -> None:
    findings = collect_metrics(made_run.record)
    findings["bits_per_byte"] = [{"source": "all", "model": 2.25, "xz": xz, "5gram": ngram}]
    assert said in verdict(made_run.record, findings, made_run.root).quality


def test_an_interrupted_run_says_how_it_goes_on(make: Callable[..., Any], tmp_path: Path) -> None:
    made = make(tmp_path, until="chunk")
    found = words(made, state="interrupted", finished=1_800_000_095.0)
    again = "Interrupted at 2027-01-15 08:01:35 UTC in chunk: run the same command to go on."
    assert found.made.startswith(again)
    command = "run mine.toml --set train.pause_share=0.5 --set seed=2"
    paused = words(made, state="paused", finished=1_800_000_095.0, command=command)
    assert "in chunk: run the same command without train.pause_share to go on." in paused.made
    assert paused.next_steps[0].command == f"bessemer run mine.toml --set seed=2 --root {made.root}"
    write_sealed(made.folder / "run.json", {**made.record, "state": "interrupted", "finished": 1_800_000_095.0})
    assert again in write_page(made.folder, made.root).read_text()


def test_next_steps_are_commands_of_this_run(make: Callable[..., Any], tmp_path: Path) -> None:
    made = make(tmp_path)
    write_sealed(made.folder / "recipe.json", {"train": {"model": {"layers": 3}}, "evaluate": {"prompts": ["It's"]}})
    earlier = made.root / "runs" / "20260101T000000Z-abcdef"
    write_sealed(earlier / "run.json", {**made.record, "run_id": earlier.name})
    other = made.root / "runs" / "20260101T000001Z-abcdef"
    write_sealed(other / "run.json", {**made.record, "run_id": other.name, "recipe_name": "another"})
    steps = words(made, command="run mine.toml --set train.model.layers=3 --set seed=2").next_steps
    mine, root = made.folder.name, f"--root {made.root}"
    assert [step.command for step in steps] == [
        f"bessemer model generate {mine} --prompt 'It'\"'\"'s' {root}",
        f"bessemer model export {mine} my-model {root}",
        f"bessemer run mine.toml --set seed=2 --set train.model.layers=6 {root}",
        f"bessemer runs compare {earlier.name} {mine} {root}",
    ]
    command = "run mine.toml --set train.model.layers=3 --set seed=2"
    repeated = words(made, run_id="29990101T000000Z-abcdef", same_as=mine, command=command)
    assert "The run took" not in repeated.made, "nothing was built"
    again = [step.command.replace("29990101T000000Z-abcdef", mine) for step in repeated.next_steps]
    assert again == [step.command for step in steps], "those of the run that built, which is not compared with itself"
    findings = {**collect_metrics(made.record), "model": {"architecture": "gpt", "parameters": 5_000}}
    first, second, *_ = verdict(made.record, findings, made.root).next_steps
    assert first.command == f"bessemer model chat {mine} {root}"
    assert second == steps[0], "any other model only writes"
    write_sealed(made.folder / "recipe.json", {})
    assert words(made).next_steps[0].command == f"bessemer model generate {mine} {root}", "no language is assumed"
    findings = {**collect_metrics(made.record), "model": {"architecture": "bert", "parameters": 5_000}}
    filled = verdict(made.record, findings, made.root).next_steps[0].command
    assert filled == f"bessemer model generate {mine} --prompt ___ {root}"
    base = {"model": {"layers": 3}, "base_model": "/models/qwen"}
    write_sealed(made.folder / "recipe.json", {"train": base})
    going_on = words(made, command="run mine.toml").next_steps
    assert not [step for step in going_on if "layers" in step.command], "its shape is that of its base"
    failed = words(made, state="failed", command="run mine.toml").next_steps
    assert [step.command for step in failed] == [f"bessemer run mine.toml {root}", f"bessemer data peek clean {root}"]


def test_a_training_that_was_resumed_by_hand_has_not_diverged(make: Callable[..., Any], tmp_path: Path) -> None:
    training = {"steps": 10, "tokens": 640, "first_loss": 6.0, "last_loss": 3.3, "rollbacks": 3, "skipped_steps": 0}
    training |= {"seconds": 0.64, "tokens_s": 1000.0}
    decision = {"cause": "", "step": 4, "to_step": 5, "skipped": None, "settings": {}}
    for guard, said in ((0, []), (1, ["training diverged and went back 1 time; a lower peak_lr is calmer"])):
        decisions = [{**decision, "by": by} for by in ["guard"] * guard + ["hand"] * (3 - guard)]
        facts = {"train": {"training": training, "decisions": decisions}}
        found = words(make(tmp_path / str(guard), facts=facts)).attention
        assert [line for line in found if "diverged" in line] == said


def test_a_model_that_continues_another_is_compared_with_it(make: Callable[..., Any], tmp_path: Path) -> None:
    made = make(tmp_path)
    write_sealed(made.folder / "recipe.json", {"train": {"model": {"layers": 3}, "base_model": "/models/qwen"}})
    command = "run mine.toml --set seed=2"
    step = next(step for step in words(made, command=command).next_steps if step.why == "compare to base")
    assert step.command == (
        f'bessemer {command} --set \'evaluate.gate.sources=["books", "web"]\' --set evaluate.gate.max_rise=1'
        f" --root {made.root}"
    )
    findings = collect_metrics({**made.record, "command": command})
    gate = {"max_rise": 1.0, "rises": {"books": -0.25, "web": 0.031}}
    measured = verdict({**made.record, "command": command}, {**findings, "gate": gate}, made.root)
    said = "Bits per byte relative to the base model: books -25.0%, web +3.1%; the gate allows +100.0%: passed."
    assert said in measured.quality
    assert "compare to base" not in [step.why for step in measured.next_steps]


def test_the_last_screen_has_at_most_thirty_lines(make: Callable[..., Any], tmp_path: Path) -> None:
    remains = {"cloze": {"items": 2, "leaked": 1, "clean": 1, "unmatchable": 0, "remains": 1}}
    training = {"steps": 10, "tokens": 640, "first_loss": 6.0, "last_loss": 3.3, "rollbacks": 3, "skipped_steps": 0}
    training |= {"seconds": 0.64, "tokens_s": 1000.0}
    facts = {"decontaminate": {"benchmarks": remains}, "train": {"training": training, "decisions": None}}
    made = make(tmp_path, facts=facts)
    write_sealed(made.folder / "recipe.json", {"train": {"model": {"layers": 3}}})
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_outcome({**made.record, "command": "run a/long/path/of/a/recipe.toml"}, made.root, console)
    screen = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert sum(max(1, math.ceil(len(line) / 80)) for line in screen.splitlines()) <= 30
    text = " ".join(screen.split())
    for said in (
        "attention training diverged and went back 3 times",
        "attention the training text still holds 1 benchmark item; such scores are less reliable",
        "and 1 more on the page",
        f"let it write: bessemer model generate latest --root {made.root}",
    ):
        assert said in text
    assert screen.splitlines()[-1].endswith(str(made.folder / "page.html")), "the path is not broken at the width"


def test_a_suggestion_is_apart_from_its_reason(make: Callable[..., Any], tmp_path: Path) -> None:
    made = make(tmp_path, until="chunk")
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_outcome(made.record, made.root, console)
    assert "see what was done: bessemer data peek clean" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_page_shows_documents_without_a_click(made_run: Any) -> None:
    page = write_page(made_run.folder, made_run.root).read_text()
    section = page.partition('<section id="examples">')[2].partition("</section>")[0]
    assert "<details" not in section
    kept, _, dropped = section.partition("<h3>Dropped</h3>")
    assert kept.count("<blockquote") == dropped.count("<blockquote") == 3
    assert "books" in kept
    assert "web" in kept
    assert all(f"in {stage}" in dropped for stage in ("clean", "dedup", "decontaminate"))


def test_edits_are_shown_as_differences_without_personal_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.reports.page import sections

    old = "First line.\n" + "word " * 40 + "\nÃ¼ber of smith@example.org"
    rows = [
        {"doc_id": b"2", "rule": "mojibake+email", "action": "edit"},
        {"doc_id": b"1", "rule": "email", "action": "edit"},
    ]
    texts = {"sample": old, "clean": old.replace("Ã¼", "ü").replace("smith@example.org", "email@example.com")}

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def files(self, _: str) -> list[str]:
            return [self.name]

    monkeypatch.setattr(sections, "sample_parts", lambda files: enumerate(files))
    monkeypatch.setattr(sections, "read_table", lambda _: sections.pa.Table.from_pylist(rows))

    def documents_of(part: Part, ids: Collection[bytes], _: list[str], parts: Collection[int]) -> dict[bytes, Any]:
        return {doc_id: {"source": "web", "text": texts[part.name]} for doc_id in ids}

    monkeypatch.setattr(sections, "documents_of", documents_of)
    (shown,) = sections.edited_documents({"sample": Part("sample"), "clean": Part("clean")})  # pyright: ignore[reportArgumentType]
    assert shown.rule == "mojibake"
    assert ("removed", "Ã¼ber") in shown.parts
    assert ("added", "über") in shown.parts
    assert "smith" not in str(shown.parts)
    assert "First line" not in str(shown.parts), "it begins a little before the difference"
