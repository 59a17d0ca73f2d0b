"""Contents of files: digests of blocks, and streams that return only what was digested."""

import io
import pickle

import blake3
import pytest

from model import file_content as content
from model.digests import digest_bytes
from model.file_content import ChangedInput, Content, ContentStream, content_of_stream

DATA = bytes(range(256)) * 5


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(content, "BLOCK_BYTES", 100)


def test_the_digest_of_one_block_is_that_of_its_bytes_and_of_more_that_of_their_digests():
    for size in (0, 1, 99, 100):
        assert content_of_stream(io.BytesIO(DATA[:size])).digest == digest_bytes(DATA[:size])
    blocks = b"".join(blake3.blake3(DATA[at : min(250, at + 100)]).digest(length=16) for at in range(0, 250, 100))
    found = content_of_stream(io.BytesIO(DATA[:250]))
    assert found == Content(250, blocks)
    # A file that holds these digests is another.
    assert found.digest != content_of_stream(io.BytesIO(blocks)).digest


@pytest.mark.parametrize("size", [0, 1, 100, 250, 300])
def test_a_stream_of_pieces_has_the_content_of_its_bytes(size):
    class Pieces(io.BytesIO):
        def read(self, most=-1):
            return super().read(min(most, 7))

    assert content_of_stream(Pieces(DATA[:size])) == content_of_stream(io.BytesIO(DATA[:size]))
    assert content_of_stream(io.BytesIO(DATA), size) == content_of_stream(io.BytesIO(DATA[:size]))


def test_bytes_from_anywhere_are_those_of_the_file():
    expected = io.BytesIO(DATA[:1234])
    found = ContentStream(io.BytesIO(DATA + b"more"), content_of_stream(expected), "a file")
    for offset, whence, size in ((0, 0, 10), (95, 0, 300), (-20, 2, 50), (3, 1, 1), (5000, 0, 5), (0, 0, -1)):
        for stream in (expected, found):
            stream.seek(offset, whence)
        assert (found.tell(), found.read(size), found.tell()) == (expected.tell(), *_read(expected, size))
    expected.seek(150)
    found.seek(150)
    one, other = bytearray(300), bytearray(300)
    assert found.readinto(one) == expected.readinto(other)
    assert one == other


def _read(stream, size):
    return stream.read(size), stream.tell()


@pytest.mark.parametrize("now", [DATA[:350], DATA[:299], DATA[:200] + b"x" + DATA[201:400], b""])
def test_not_one_byte_of_a_changed_block_is_given(now):
    seen = content_of_stream(io.BytesIO(DATA[:400]))
    stream = ContentStream(io.BytesIO(now), seen, "a file")
    read: list[bytes] = []
    with pytest.raises(ChangedInput, match="a file was changed"):
        read.extend(iter(lambda: stream.read(30), b""))
    assert DATA.startswith(b"".join(read))
    assert sum(map(len, read)) <= 300
    with pytest.raises(ChangedInput) as raised:
        stream.check()
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
