"""Which licences a model may have beside those of its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.reports.model_card_facts import check_licence, conflicts
from model.errors import RecipeError

LICENCES = [
    "MIT",
    "Apache-2.0",
    "CC0-1.0",
    "CC-BY-4.0",
    "CC-BY-SA-4.0",
    "CC-BY-NC-4.0",
    "GPL-3.0-only",
    "public-domain",
]


@pytest.mark.parametrize(
    "stated", ["MIT", "Apache-2.0", "BSD-3-Clause", "CC0-1.0", "CC-BY-4.0", "public-domain", "PSF-2.0"]
)
def test_permissive_text_goes_with_any_licence(stated: str) -> None:
    assert all(not conflicts(declared, {"books": stated}) for declared in LICENCES)


@pytest.mark.parametrize(
    ("stated", "declared", "goes"),
    [
        ("CC-BY-SA-4.0", "CC-BY-SA-4.0", True),
        ("CC-BY-SA-3.0", "CC-BY-SA-4.0", True),
        ("CC-BY-SA-4.0", "CC-BY-SA-3.0", False),
        ("CC-BY-SA-4.0", "MIT", False),
        ("GPL-2.0-or-later", "GPL-3.0-only", True),
        ("GPL-2.0-only", "GPL-3.0-only", False),
        ("GPL-2.0-only", "GPL-2.0-only", True),
        ("GPL-3.0-only", "Apache-2.0", False),
        ("MPL-2.0", "MIT", False),
        ("CC-BY-NC-4.0", "MIT", False),
        ("CC-BY-NC-4.0", "CC-BY-NC-4.0", True),
        ("CC-BY-NC-SA-4.0", "CC-BY-NC-4.0", False),
        ("CC-BY-NC-SA-4.0", "CC-BY-NC-SA-4.0", True),
        ("CC-BY-ND-4.0", "CC-BY-ND-4.0", False),
        ("CC-BY-SA-3.0 OR GPL-2.0-or-later", "GPL-3.0-only", True),
        ("CC-BY-SA-3.0 OR GPL-2.0-or-later", "MIT", False),
        ("MIT OR CC-BY-NC-4.0", "MIT", True),
        ("MIT AND CC-BY-SA-4.0", "MIT", False),
        ("(MIT AND CC-BY-4.0) OR CC-BY-NC-4.0", "Apache-2.0", True),
        ("CC0-1.0 AND (MIT OR CC-BY-NC-4.0)", "MIT", True),
        ("CC0-1.0 AND (CC-BY-SA-4.0 OR CC-BY-NC-4.0)", "MIT", False),
        ("CC-BY-SA-4.0 AND CC-BY-SA-3.0", "CC-BY-SA-4.0", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "MIT", False),
        ("(((MIT", "MIT", False),
        ("Sesame-1.0", "MIT", False),
        ("MIT and GPL-3.0-only", "MIT", False),
        ("MIT/GPL-3.0", "MIT", False),
        ("MIT, GPL-3.0-only", "MIT", False),
        ("Apache-2.0 & AGPL-3.0", "MIT", False),
        ("MIT) AND CC-BY-NC-4.0", "MIT", False),
        ("MITRE-secret", "CC-BY-4.0", False),
        ("BSD-Protection", "MIT", False),
        ("CC0-1.0 AND Public Domain or odc-by", "mit", True),
        ("LicenseRef-own", "MIT", False),
        ("LicenseRef-Public-Domain", "MIT", True),
        ("CC-BY-NC-4.0", "MIT OR CC-BY-NC-4.0", False),
        ("MIT", "MIT OR CC-BY-NC-4.0", True),
        ("GPL-2.0", "GPL-3.0-or-later", False),
        ("GPL-3.0-only", "GPL-3.0-or-later", False),
        ("GPL-2.0", "GPL-2.0-only", True),
        ("LGPL-2.1+", "LGPL-3.0-only", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "GPL-3.0-only WITH Classpath-exception-2.0", False),
        ("GPL-2.0-only", "GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "GPL-2.0-only", True),
        ("odbl", "ODbL-1.0", True),
        ("research-only", "LicenseRef-research-only", True),
    ],
)  # fmt: skip
def test_what_a_source_asks_is_asked_of_the_model(stated: str, declared: str, goes: bool) -> None:
    assert (not conflicts(declared, {"books": stated})) == goes


def test_the_error_names_source_licence_reason_and_cure() -> None:
    sources = {"books": "CC0-1.0", "wiki": "CC-BY-SA-4.0", "web": None, "papers": "CC-BY-NC-4.0"}
    with pytest.raises(RecipeError) as reported:
        check_licence("MIT", sources)
    assert str(reported.value).splitlines() == [
        "licence MIT: the model cannot have this licence, because it conflicts with those of its sources:",
        "  wiki (CC-BY-SA-4.0): derived works must have the same licence",
        "  web (no licence stated): without a licence nothing is permitted",
        "  papers (CC-BY-NC-4.0): it forbids commercial use, which MIT permits",
        "Declare a licence that they permit, train again without these sources, state their licences (`licence` of the"
        " source in the recipe), or export without --licence, which grants nothing.",
    ]
    check_licence("MIT", {"books": "CC0-1.0"})


def test_a_declared_licence_is_an_expression_of_spdx() -> None:
    with pytest.raises(RecipeError, match="no SPDX expression"):
        check_licence("MIT/GPL-3.0", {"books": "CC0-1.0"})


@given(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([*LICENCES, None])),
    st.sampled_from(LICENCES),
    st.sampled_from([*LICENCES, None]),
)
def test_another_source_never_removes_a_conflict(
    sources: dict[str, str | None], declared: str, more: str | None
) -> None:
    before = conflicts(declared, sources)
    assert conflicts(declared, {**sources, "z": more})[: len(before)] == before
