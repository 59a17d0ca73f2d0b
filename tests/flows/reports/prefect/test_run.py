"""The summary of a run leads to its page."""

import pytest

from flows.reports.prefect.artifacts import PAGES_AT, format_page_link

PAGE = "/data/runs/20260101T000000Z-abcdef/page.html"


def test_the_page_is_a_path_on_the_machine_that_ran_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PAGES_AT, raising=False)
    assert format_page_link(PAGE) == f"Run page, on the machine of the run: `{PAGE}`"


@pytest.mark.parametrize("at", ["http://pages.example/runs", "http://pages.example/runs/"])
def test_the_page_is_a_link_where_pages_are_served(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PAGES_AT, at)
    link = "[Run page](http://pages.example/runs/20260101T000000Z-abcdef/page.html)"
    assert format_page_link(PAGE) == link


def test_a_run_without_a_page_has_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PAGES_AT, "http://pages.example/runs")
    assert format_page_link(None) == ""
