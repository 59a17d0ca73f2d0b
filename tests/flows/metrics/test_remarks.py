"""What a run must say of itself: sources that gave nothing, and shares that are not the recipe's."""

from collections import Counter
from dataclasses import fields
from typing import Any

from flows.metrics.accounting import conservation, not_selected, run_warnings
from tasks.artifacts.report import SourceCounts, StageReport
from tasks.artifacts.results import SampleResult


def reported(sources: dict[str, SourceCounts], **facts: Any) -> StageReport:
    report = StageReport()
    report.sources, report.facts = sources, facts
    return report


def sampled(sources: dict[str, SourceCounts], plan: dict[str, Any] | None = None) -> StageReport:
    named = {**{name: {"weight": 1.0} for name in sources}, **(plan or {})}
    nothing: dict[str, Any] = {key.name: {} for key in fields(SampleResult)}
    return reported(sources, **{**nothing, "mixture_plan": named})


def chunked(sources: dict[str, SourceCounts], **facts: Any) -> StageReport:
    order = {"reads": 1, "tokens": 512, "asked_tokens": 512}
    rows = {"objective": "causal_lm", "packing": "concat", "row_length": 512, "rows": 1}
    return reported(
        sources,
        **{"mixture": {}, "padding_share": 0.0, "order": order, "rows": rows, "spans": {"segments": 1}, **facts},
    )


def counts(documents_in: int, documents_out: int, **dropped: int) -> SourceCounts:
    return SourceCounts(documents_in, documents_out, dropped=Counter(dropped))


def mixed(weight: float, planned: float, realised: float) -> dict[str, Any]:
    shares = {"weight": weight, "planned_share": planned, "realised_share": realised}
    return {**shares, "tokens": 1200, "reads": round(100 * realised), "epochs": 4.0}


def test_a_small_source_that_a_rule_empties_is_reported_with_the_rule():
    sample = sampled({"prose": counts(9, 9), "mixed": counts(2, 2)})
    clean = reported({"prose": counts(9, 8, short=1), "mixed": counts(2, 0, gopher_words_min=2)})
    assert run_warnings({"sample": sample, "clean": clean}, {}) == [
        "source `mixed` gave nothing to train on: 2 of 2 dropped in clean by gopher_words_min"
    ]


def test_records_that_could_not_be_read_are_counted_and_their_files_named():
    sample = sampled({"ar": SourceCounts(9, 5, rejected=4)})
    sample.facts["unreadable_records"] = {"ar": 3}  # an empty file is rejected too
    sample.facts["rejected_files"] = {"ar": [{"path": "a.txt", "records": 2, "reason": "invalid UTF-8"}]}
    assert run_warnings({"sample": sample}, {}) == [
        "source `ar`: 3 of 9 records could not be read (`bessemer data history FILE` shows why): a.txt (2, the"
        " first: invalid UTF-8)"
    ]
    sample.facts["rejected_files"]["ar"][0]["records"] = 1
    (alone,) = run_warnings({"sample": sample}, {})
    assert alone.endswith("a.txt (1: invalid UTF-8)")


def test_every_outcome_of_an_emptied_source_is_reported():
    lost = SourceCounts(9, 6, not_selected=2, rejected=1)
    sample = sampled({"mixed": lost, "prose": counts(1, 1)})
    sample.facts["unreadable_records"] = {"mixed": 1}
    clean = reported({"mixed": counts(6, 2, short=1, ugly=3), "prose": counts(1, 1)})
    dedup = reported({"mixed": counts(2, 0, copy=2), "prose": counts(1, 1)})
    assert run_warnings({"sample": sample, "clean": clean, "dedup": dedup}, {}) == [
        "source `mixed` gave nothing to train on: 2 of 9 not selected in sample, 1 of 9 rejected in sample as"
        " unreadable, 4 of 9 dropped in clean by ugly (3), short (1), 2 of 9 dropped in dedup by copy"
    ]


def test_an_empty_file_is_not_called_unreadable():
    sample = sampled({"mixed": SourceCounts(3, 0, rejected=3)})
    sample.facts["unreadable_records"] = {"mixed": 1}
    assert run_warnings({"sample": sample}, {})[0] == (
        "source `mixed` gave nothing to train on: 1 of 3 rejected in sample as unreadable, 2 of 3 rejected in sample as"
        " empty"
    )
    counted = conservation({}, {"sample": sample})
    assert counted is not None
    assert (counted["documents"]["rejected"], counted["documents"].get("empty"), counted["balanced"]) == (3, 2, True)


def test_a_source_without_documents_is_reported_and_one_without_weight_is_not():
    plan = {"prose": {"weight": 1.0}, "empty": {"weight": 0.5}, "left out": {"weight": 0}}
    sample = sampled({"prose": counts(1, 1)}, plan)
    assert run_warnings({"sample": sample}, {}) == [
        "source `empty` gave nothing to train on: its files hold no document"
    ]


def test_a_mixture_a_point_off_the_weights_is_reported_with_its_cause():
    plan = {"prose": {"weight": 0.5}, "code": {"weight": 0.5}}
    sample = sampled({"prose": counts(9, 9), "code": counts(9, 9)}, plan)
    mixture = {"prose": mixed(0.5, 0.9, 0.9), "code": mixed(0.5, 0.1, 0.1)}
    chunk = chunked({"prose": counts(9, 9), "code": counts(9, 9)}, mixture=mixture)
    remark = (
        "training read another mixture than the recipe asks for: code 10.0% and not 50.0% (its 1,200 tokens are read"
        " 4.00 times, as often as is allowed); prose 90.0% and not 50.0% (it replaces what other sources lack)"
    )
    assert run_warnings({"sample": sample, "chunk": chunk}, {"limit": 1.0}) == [remark]
    small = f"{remark}. The limit of 1.00% leaves sources too small for their weights"
    assert run_warnings({"sample": sample, "chunk": chunk}, {"limit": 0.01}) == [small]


def test_text_that_sampling_left_out_and_training_lacked_is_reported_with_what_to_set():
    plan = {"prose": {"weight": 0.5, "rate": 1.0}, "pages": {"weight": 0.5, "rate": 0.1}}
    sample = sampled({"prose": counts(9, 9), "pages": SourceCounts(40, 4, not_selected=36)}, plan)
    mixture = {"prose": mixed(0.5, 0.9, 0.9), "pages": mixed(0.5, 0.1, 0.1)}
    chunk = chunked({"prose": counts(9, 9), "pages": counts(4, 4)}, mixture=mixture)
    *_, remark = run_warnings({"sample": sample, "chunk": chunk}, {"limit": 1.0})
    assert "Sampling left out 36 of 40 records of pages, since it expected more tokens of its bytes" in remark
    assert remark.endswith("set sample.tokens_per_byte and slack to what `bessemer estimate` prints")
    *_, remark = run_warnings({"sample": sample, "chunk": chunk}, {"limit": 0.1})
    assert "Sampling left out" not in remark


def test_a_mixture_within_a_point_of_the_weights_is_as_asked():
    plan = {"prose": {"weight": 0.5}, "code": {"weight": 0.5}}
    sample = sampled({"prose": counts(9, 9), "code": counts(9, 9)}, plan)
    mixture = {"prose": mixed(0.5, 0.5, 0.509), "code": mixed(0.5, 0.5, 0.491)}
    chunk = chunked({"prose": counts(9, 9), "code": counts(9, 9)}, mixture=mixture)
    assert run_warnings({"sample": sample, "chunk": chunk}, {"limit": 0.01}) == []


def test_a_source_that_is_gone_counts_as_a_share_of_nothing():
    plan = {"prose": {"weight": 0.7}, "code": {"weight": 0.3}}
    sample = sampled({"prose": counts(9, 9), "code": counts(9, 9)}, plan)
    chunk = chunked({"prose": counts(9, 9)}, mixture={"prose": mixed(1.0, 1.0, 1.0)})
    *_, shares = run_warnings({"sample": sample, "chunk": chunk}, {})
    assert "code 0.0% and not 30.0% (none of its text was left); prose 100.0% and not 70.0% (it replaces what" in shares


def test_with_a_temperature_the_weights_are_those_that_chunk_found():
    plan = {"prose": {"weight": 0.9}, "code": {"weight": 0.1}}
    sample = sampled({"prose": counts(9, 9), "code": counts(9, 9)}, plan)
    mixture = {"prose": mixed(0.8, 0.8, 0.8), "code": mixed(0.2, 0.2, 0.2)}
    chunk = chunked({"prose": counts(9, 9), "code": counts(9, 9)}, mixture=mixture)
    assert run_warnings({"sample": sample, "chunk": chunk}, {"temperature": 2.0}) == []
    assert len(run_warnings({"sample": sample, "chunk": chunk}, {})) == 1


def test_a_vocabulary_that_loses_words_is_reported_by_source():
    shares = {"code": 0.0, "mixed": 0.01, "poems": 0.0312}
    (remark,) = run_warnings({"vocab": reported({}, vocabulary={"unknown_share": shares})}, {})
    assert remark.startswith("3.1% of the tokens of source `poems` are unknown words")
    assert remark.endswith("raise vocab.vocab_size or vocab.character_coverage, or take another vocab.model_type")
    extended = {"unknown_share": shares, "base": {"pieces": 300}}
    (remark,) = run_warnings({"vocab": reported({}, vocabulary=extended)}, {})
    assert remark.endswith("extend the base by the source's script with vocab.extend, or take another base")
    assert run_warnings({"vocab": reported({}, vocabulary={"pieces": 300})}, {}) == []


def test_rows_that_are_mostly_padding_are_reported_with_a_cure():
    rows = {"objective": "masked_lm", "packing": "pairs", "row_length": 512, "rows": 10}
    of_chat = chunked({"chat": counts(9, 9)}, rows=rows, padding_share=0.94)
    assert run_warnings({"chunk": of_chat}, {}) == [
        "94% of the rows of 512 tokens are padding: the texts are too short for them, or too long for two in a"
        " row; a smaller train.model.context leaves less"
    ]
    awkward = chunked({"notes": counts(9, 9)}, rows={**rows, "packing": "best_fit"}, padding_share=0.4)
    assert run_warnings({"chunk": awkward}, {})[0].endswith("train.model.context or chunk.packing = concat leaves less")
    full = chunked({"books": counts(9, 9)}, rows=rows, padding_share=0.1)
    assert run_warnings({"chunk": full}, {}) == []


def test_documents_that_the_limit_left_out_are_not_ascribed_to_the_mixture():
    plan = {"large": {"rate": 0.05}, "limited": {"rate": 0.2}, "whole": {"rate": 1.0}}
    left = {name: SourceCounts(200, 200 - left, not_selected=left) for name, left in (("large", 190), ("limited", 150))}
    sample = sampled({**left, "whole": counts(9, 9)}, plan)
    assert not_selected({"sample": sample}, {"limit": 0.2}) == {
        "not needed for the mixture": 190,
        "left out by --limit 20%": 150,
    }
    assert not_selected({"sample": sample}, {"limit": 1.0}) == {"not needed for the mixture": 340}
    without = sampled({"whole": SourceCounts(9, 8, not_selected=1)}, plan)
    assert not_selected({"sample": without}, {"limit": 1.0}) == {"left out by exclude_documents": 1}
    assert not_selected({}, {}) == {}
