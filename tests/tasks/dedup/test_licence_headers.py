"""Source files are compared without their licence header."""

import random
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.artifacts.build import RunContext
from tasks.artifacts.tables.columns import text_buffers
from tasks.dedup.config import DedupConfig
from tasks.dedup.licence_headers import body_start
from tasks.dedup.minhash import sign_with_datasketch, signatures_of
from tasks.dedup.stage import build_dedup

HEADER = """Copyright 2019 The Example Authors

Permission is granted to use, copy and change this file under the terms of the Example License, version 2, as
written in the file LICENSE beside it. It comes without any warranty, and nobody but you is liable for what it does.
Keep this notice in every copy, and name the authors where you use more than a few lines of it in another work.
"""


def header(style: str, number: int | None = None) -> str:
    text = HEADER if number is None else f"Copyright {1990 + number} Person {number}\nLicense {number} of this file.\n"
    if style == "/*":
        return f"/*\n * {text.strip()}\n */\n\n"
    return "".join(f"{style} {line}".rstrip() + "\n" for line in text.splitlines()) + "\n"


def function(number: int, lines: int = 6) -> str:
    generator = random.Random(number)
    names = [f"{generator.choice('abcdefgh')}{generator.randrange(900)}" for _ in range(3 * lines)]
    body = "".join(f"    {a} = {b} + {c}\n" for a, b, c in zip(*[iter(names)] * 3, strict=True))
    return f"def compute{number}(first, second):\n{body}    return {names[0]}\n"


def kept(context: RunContext, make_documents, texts: list[str]) -> list[str]:
    documents = make_documents([[("code", text) for text in texts]])
    result = build_dedup(context, documents, DedupConfig(planted_pairs=0, wipe_out_limit=1.0))
    result.report.check_conservation("dedup")
    return result.table("documents").column("text").to_pylist()


@pytest.mark.parametrize("style", ["#", "//", "--", "/*"])
def test_different_functions_under_one_header_are_kept_with_it(context, make_documents, style):
    texts = [header(style) + function(number) for number in range(80)]
    assert sorted(kept(context, make_documents, texts)) == sorted(texts)


def test_copies_of_a_function_under_different_headers_leave_one(context, make_documents):
    texts = [header(style, number) + function(0) for number, style in enumerate(["#", "//", "/*", "--", ";"] * 2)]
    (survivor,) = kept(context, make_documents, texts)
    assert survivor in texts


def test_files_equal_but_for_the_header_leave_one(context, make_documents):
    code = function(0, lines=60)
    assert len(kept(context, make_documents, [header("#") + code, code, header("/*", 3) + code])) == 1


def test_files_of_nothing_but_a_header_are_compared_by_it(context, make_documents):
    texts = [header("#"), header("#") + "\n", header("#", 7)]
    assert len(kept(context, make_documents, texts)) == 2


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("# Copyright 2020 A\n# all rights reserved\nimport os\n", "\nimport os\n"),
        ("#!/bin/sh\n# SPDX-License-Identifier: MIT\n\necho hi\n", "\n\necho hi\n"),
        ("# coding: utf-8\n\n# Licence: MIT\n\n# Adds numbers.\nx = 1\n", "\n\n# Adds numbers.\nx = 1\n"),
        ("/* LICENSED under MIT */ int x;", " int x;"),
        ("<?php\n// Copyright A\n$x = 1;", "\n$x = 1;"),
        ('"""Copyright A."""\nx = 1', "\nx = 1"),
        ("<!-- Copyright A -->\n<p>text</p>", "\n<p>text</p>"),
        ("# Adds numbers.\nx = 1  # Copyright\n", "# Adds numbers.\nx = 1  # Copyright\n"),
        ("/* Copyright A, and no end\nint x;", "/* Copyright A, and no end\nint x;"),
        ("# Copyright A\n# License B\n\n\n", "# Copyright A\n# License B\n\n\n"),
        ("Copyright law in prose. It is long.", "Copyright law in prose. It is long."),
        ("", ""),
    ],
)
def test_where_the_body_begins(text, body):
    raw = np.frombuffer(b"x" + text.encode() + b"# license", np.uint8)
    assert raw[body_start(raw, 1, 1 + len(text.encode())) : 1 + len(text.encode())].tobytes().decode() == body


def test_comments_that_nothing_closes_are_searched_once():
    text = b"--[[ x\n\n" * 100_000
    data = np.frombuffer(text, np.uint8)
    body_start(data, 0, 8)
    began = time.process_time()
    assert body_start(data, 0, len(data)) == 0
    # 40 billion steps, which took a minute, where each opening was followed to the end.
    assert time.process_time() - began < 5


@given(st.text(st.sampled_from("# /*-\n\"'xé<!")), st.sampled_from([header("#"), header("//"), header("/*"), ""]))
def test_signatures_are_those_of_datasketch(rest, head):
    data, offsets = text_buffers(pa.array([head + rest], pa.large_string()))
    theirs = sign_with_datasketch(data, offsets, 0, 5, 112, 1)
    assert np.array_equal(signatures_of(data, offsets, 5, 112, 1)[0], theirs.hashvalues)
