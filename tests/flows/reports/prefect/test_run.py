"""The summary of a run leads to its page."""

from flows.reports.prefect.artifacts import format_page_link

PAGE = "/data/runs/20260101T000000Z-abcdef/page.html"


def test_the_page_is_a_path_on_the_machine_that_ran_it() -> None:
    assert format_page_link(PAGE, None) == f"Run page, on the machine of the run: `{PAGE}`"


def test_the_page_is_a_link_where_pages_are_served() -> None:
    link = "[Run page](http://pages.example/runs/20260101T000000Z-abcdef/page.html)"
    assert format_page_link(PAGE, "http://pages.example/runs") == link
    assert format_page_link(PAGE, "http://pages.example/runs/") == link


def test_a_run_without_a_page_has_no_link() -> None:
    assert format_page_link(None, "http://pages.example/runs") == ""
