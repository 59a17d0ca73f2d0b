"""The summary of a run leads to its page."""

from flows.reports.prefect.artifacts import page_told

PAGE = "/data/runs/20260101T000000Z-abcdef/page.html"


def test_the_page_is_a_path_on_the_machine_that_ran_it() -> None:
    assert page_told(PAGE, None) == f"Page of the run, on the machine that ran it: `{PAGE}`"


def test_the_page_is_a_link_where_pages_are_served() -> None:
    link = "[Page of the run](http://pages.example/runs/20260101T000000Z-abcdef/page.html)"
    assert page_told(PAGE, "http://pages.example/runs") == link
    assert page_told(PAGE, "http://pages.example/runs/") == link


def test_a_run_without_a_page_has_no_link() -> None:
    assert page_told(None, "http://pages.example/runs") == ""
