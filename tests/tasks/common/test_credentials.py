"""Credentials in addresses are found and masked; what is none stays."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.common.text import addresses_with_credentials, without_credentials


@pytest.mark.parametrize(
    ("reported", "masked"),
    [
        ("s3://AKIA123:wJalr/K7MDENG@bucket/x", "s3://***@bucket/x"),
        ("postgresql+asyncpg://me:pw@127.0.0.1:5432/x", "postgresql+asyncpg://***@127.0.0.1:5432/x"),
        ("https://:pw@host/x", "https://***@host/x"),
        ("https://host/x?a=1&X-Amz-Signature=ab12&b=2", "https://host/x?a=1&X-Amz-Signature=***&b=2"),
        ("https://host/x?token=ab12", "https://host/x?token=***"),
        ("got 403 for 'https://u:p@h/a', and more", "got 403 for 'https://***@h/a', and more"),
    ],
)
def test_credentials_are_masked(reported: str, masked: str) -> None:
    assert without_credentials(reported) == masked
    assert without_credentials(masked) == masked


@pytest.mark.parametrize(
    "plain",
    [
        "s3://bucket/folder/*.jsonl",
        "hf://datasets/user/name@revision/file.parquet",
        "http://127.0.0.1:8080/mail@example.org",
        "http://host:4200",
        "https://host/x?page=2&tokens=5",
        "a mail to smith@example.org: see the note",
        "C:/folder/file@2",
    ],
)
def test_what_is_no_credential_stays(plain: str) -> None:
    assert without_credentials(plain) == plain


LIKE_A_PORT = re.compile(r"\d{2,5}/")
SECRETS = st.text("abcdefXYZ0123456789/+=_-", min_size=8, max_size=40).filter(lambda word: not LIKE_A_PORT.match(word))


@given(SECRETS, st.sampled_from(["s3", "gs", "https", "abfs"]))
def test_no_secret_before_an_at_sign_is_left(secret: str, scheme: str) -> None:
    address = f"{scheme}://NAME:{secret}@host/path"
    assert without_credentials(f"read {address} now") == f"read {scheme}://***@host/path now"


def test_the_path_of_each_address_is_returned() -> None:
    recipe = {"sources": [{"name": "a", "paths": ["/data", "s3://k:s@b/x"]}], "seed": 1, "note": "?token=1"}
    assert list(addresses_with_credentials(recipe)) == [("sources[0].paths[1]", "s3://***@b/x")]
