"""An answer is the range that was asked for, to the byte, or it is an error that says what came."""

import pytest

from aimodels_core.answers import Answer
from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import DigestMismatch, SourceUnavailable, UnsafeContent
from aimodels_core.source import SourceFile
from aimodels_jobs.sources import hub_ranges, lfs_pointer
from aimodels_jobs.sources.hub_ranges import Reading

BODY = bytes(range(200))
LFS = SourceFile("model.safetensors", len(BODY), digest=Digest.of(BODY))
SMALL = SourceFile("config.json", 3, git_digest=GitDigest.of(b"{}\n"))
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 1048576\n"


def partial(body: bytes, start: int, total: int) -> Answer:
    headers = {"content-range": f"bytes {start}-{start + len(body) - 1}/{total}"}
    return Answer(206, headers, body, "https://cdn.hf.co/a?Signature=secret")


def whole(body: bytes, kind: str = "text/html") -> Answer:
    return Answer(200, {"content-type": kind}, body, "https://cdn.hf.co/a?Signature=secret")


def test_a_right_range_is_returned() -> None:
    assert Reading(LFS, 10, 20).content(partial(BODY[10:20], 10, 200)) == BODY[10:20]
    assert Reading(LFS, 0, 200).content(partial(BODY, 0, 200)) == BODY


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param(partial(BODY[11:21], 11, 200), "WrongRange", id="another place"),
        pytest.param(partial(BODY[10:20], 10, 201), "WrongRange", id="another total"),
        pytest.param(Answer(206, {}, BODY[10:20], "https://h/"), "WrongRange", id="no content range"),
        pytest.param(
            Answer(206, {"content-range": "bytes 10-19/200"}, BODY[10:19], "https://h/"), "ShortBody", id="short"
        ),
        pytest.param(whole(BODY), "NotPartial", id="200 for a range of a large file"),
        pytest.param(Answer(416, {}, b"", "https://h/"), "UnexpectedStatus", id="416"),
    ],
)
def test_a_wrong_range_is_refused(answer: Answer, code: str) -> None:
    with pytest.raises(SourceUnavailable) as caught:
        Reading(LFS, 10, 20).content(answer)

    assert caught.value.code == code


def test_o02_a_page_instead_of_the_file_says_expected_got_and_content_type() -> None:
    with pytest.raises(SourceUnavailable) as caught:
        Reading(SourceFile("m.bin", 1_048_576, digest=Digest.of(b"")), 0, 1_048_576).content(whole(b"x" * 635))

    message = caught.value.message
    assert "m.bin" in message
    assert "206" in message
    assert "635" in message
    assert "text/html" in message
    assert "secret" not in message


def test_a_small_file_outside_lfs_may_come_whole() -> None:
    assert Reading(SMALL, 1, 3).content(whole(b"{}\n")) == b"}\n"
    with pytest.raises(SourceUnavailable):
        Reading(SMALL, 1, 3).content(whole(b"{}\n\n"))


def test_o12_one_flipped_byte_is_caught_by_either_digest() -> None:
    for file, body in ((SMALL, b"{|\n"), (LFS, BODY[:-1] + b"x")):
        reading = Reading(file, 0, file.size_bytes)
        with pytest.raises(SourceUnavailable) as first:
            reading.content(partial(body, 0, file.size_bytes))
        assert first.value.code == "DigestDiffers"
        with pytest.raises(DigestMismatch) as second:
            reading.content(partial(body, 0, file.size_bytes))
        assert second.value.want == str(file.digest or file.git_digest)
        assert second.value.got not in ("", second.value.want)


def test_o12_a_byte_flipped_once_is_forgiven() -> None:
    reading = Reading(SMALL, 0, 3)
    with pytest.raises(SourceUnavailable):
        reading.content(partial(b"{|\n", 0, 3))

    assert reading.content(partial(b"{}\n", 0, 3)) == b"{}\n"


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(SourceFile("model.safetensors", 1_048_576, digest=Digest("a" * 64)), id="listed as LFS"),
        pytest.param(SourceFile("model.safetensors", len(POINTER), git_digest=GitDigest.of(POINTER)), id="not LFS"),
    ],
)
def test_o01_a_pointer_in_the_place_of_the_file_is_fetched_again_once(file: SourceFile) -> None:
    reading = Reading(file, 0, file.size_bytes)
    with pytest.raises(SourceUnavailable) as first:
        reading.content(whole(POINTER))
    assert first.value.code == "LfsPointer"
    with pytest.raises(UnsafeContent) as second:
        reading.content(partial(POINTER, 0, len(POINTER)))

    assert second.value.code == "LfsPointer"
    assert second.value.path == "model.safetensors"
    assert "a" * 64 in second.value.message
    assert "1048576" in second.value.message


def test_a_file_that_really_is_a_pointer_text_is_a_file() -> None:
    file = SourceFile("example.bin", len(POINTER), digest=Digest.of(POINTER))

    assert Reading(file, 0, len(POINTER)).content(partial(POINTER, 0, len(POINTER))) == POINTER


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        POINTER[:-10],
        POINTER + b"more",
        POINTER.replace(b"sha256", b"sha1"),
        b"x" * 5000,
    ],
)
def test_what_is_no_pointer(content: bytes) -> None:
    assert lfs_pointer.find(content) is None


def test_a_pointer_with_extensions_and_without_last_newline() -> None:
    extended = POINTER.replace(b"oid ", b"ext-0-foo sha256:" + b"b" * 64 + b"\noid ").rstrip(b"\n")
    found = lfs_pointer.find(extended)

    assert found is not None
    assert (found.oid, found.size_bytes) == ("a" * 64, 1_048_576)


def test_answers_are_bounded_by_the_range_except_for_small_files() -> None:
    assert hub_ranges.longest_answer(LFS, 0, 100_000) == 100_000
    assert hub_ranges.longest_answer(SourceFile("a", 5_000_000, git_digest=GitDigest("a" * 40)), 0, 1) == 5_000_000
