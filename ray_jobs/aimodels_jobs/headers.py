"""What the first bytes of a weight file say: pointer, kind, header. Dispatches to the parser of the file's kind. Pure.

A parser gets a prefix of the file and its whole size. It answers a header, or `NeedBytes` when the header goes on
beyond the prefix, or raises `UnsafeContent`. Nothing is allocated by a number in the file that was not compared with
the file's size first.
"""

import dataclasses
import re

from aimodels_core.errors import UnsafeContent

FIRST_WINDOW_BYTES = 1024 * 1024
"""How much of each weight file is worth reading before its header is parsed for the first time."""

_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\r?\n")
_POINTER_OID = re.compile(rb"^oid (sha256:[0-9a-f]{64})\r?$", re.MULTILINE)
_POINTER_SIZE = re.compile(rb"^size (\d{1,20})\r?$", re.MULTILINE)
_TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_WANTED = {"safetensors": ("safetensors",), "gguf": ("gguf",), "torch": ("zip", "pickle", "tar", "gzip")}


@dataclasses.dataclass(frozen=True, slots=True)
class NeedBytes:
    """The header goes on: parse again with this many bytes from the start of the file."""

    total: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a weight file: `start` and `stop` are offsets in the file's tensor data."""

    name: str
    dtype: str
    elements: int
    start: int
    stop: int


def refuse_pointer(path: str, prefix: bytes) -> None:
    """Recognise a Git LFS pointer that came instead of the file, before anything else is parsed.

    Raises:
        UnsafeContent: code LfsPointer; names the object and the size that the pointer declares.
    """
    head = prefix[:1024]
    if not _POINTER.match(head):
        return
    oid, size = _POINTER_OID.search(head), _POINTER_SIZE.search(head)
    got = f"oid {oid[1].decode() if oid else 'unknown'}, size {size[1].decode() if size else 'unknown'}"
    raise UnsafeContent(path, code="LfsPointer", detail=f"want the file, got a Git LFS pointer to it: {got}")


def sniff(prefix: bytes) -> str:
    r"""Tell the kind of a file by its leading bytes; empty when they tell nothing.

    >>> [sniff(b) for b in (b"GGUF", b"PK\x03\x04", b"<!DOCTYPE html>", b"\x08" + bytes(7) + b"{", b"")]
    ['gguf', 'zip', 'html', 'safetensors', '']
    """
    if prefix[4:8] == bytes(4) and prefix[8:9] == b"{":
        return "safetensors"  # first: a header of 640 bytes begins as a pickle does, one of 35,615 as gzip
    if prefix.startswith(b"GGUF"):
        return "gguf"
    if prefix.startswith(b"PK\x03\x04"):
        return "zip"
    if prefix[:1] == b"\x80" and prefix[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}:
        return "pickle"
    if prefix[:256].lstrip().lower().startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "html"
    if prefix[:2] == b"\x1f\x8b":
        return "gzip"
    return "tar" if prefix[257:262] == b"ustar" else ""


def refuse_other_kind(path: str, prefix: bytes) -> None:
    """Refuse a weight file whose leading bytes are those of another kind than its name says.

    Raises:
        UnsafeContent: codes LfsPointer, ContentTypeMismatch.
    """
    refuse_pointer(path, prefix)
    suffix = "." + path.lower().rpartition(".")[2]
    name = "torch" if suffix in _TORCH_SUFFIXES else suffix[1:]
    got = sniff(prefix)
    if name in _WANTED and got not in {*_WANTED[name], ""}:
        raise UnsafeContent(path, code="ContentTypeMismatch", detail=f"{got} in {suffix}")


def invalid(path: str, detail: str, *, code: str = "HeaderInvalid") -> UnsafeContent:
    """Make the error of a header that breaks its format."""
    return UnsafeContent(path, code=code, detail=detail)
