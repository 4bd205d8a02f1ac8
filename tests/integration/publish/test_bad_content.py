"""Repositories that must not be published as they are: refused with a reason, mended, then published.

Nothing large moves before the refusal, and the older model of the same name stays.
"""

import json
import struct
from typing import Any

import pytest

from tests.support.badinput import Row, Spoil, denied, failed, nothing, run, small_model
from tests.support.hub.bodies import BytesBody
from tests.support.hub.faults import Fault
from tests.support.hub.repository import Access, Content, File, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.publishing import PART, Shop
from tests.support.weights import gguf, llama_config, safetensors_of_size, tiny_sharded

WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"


def tensor(start: int, stop: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def header(content: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file with any header."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def has(changes: dict[str, Content | File | None]) -> Spoil:
    """The repository gets a commit with some files changed, or removed."""
    return lambda _, repository: repository.update(changes)


def only(files: dict[str, Content | File]) -> Spoil:
    """The repository gets a commit with exactly these files."""
    return lambda _, repository: repository.commit(files)


def weights(content: Content | File) -> Spoil:
    return has({WEIGHTS: content})


def a_gguf(content: Content) -> Spoil:
    return only({"m-Q4_K_M.gguf": content})


def mended(hub: Hub, repository: Repository) -> None:
    """The repository gets a good commit, and everybody may read it."""
    hub.rules.clear()
    repository.access = Access.PUBLIC
    hub.add(repository)
    repository.commit(small_model(repository.id, seed=7).head.files)


def refused(spoil: Spoil, code: str, *says: str, **more: object) -> Row:
    """A small model that is refused for good, until it has a good commit."""
    return failed(spoil, code, *says, **{"make": small_model, "mend": mended, **more})


def access(kind: Access) -> Spoil:
    return lambda _, repository: setattr(repository, "access", kind)


def misplaced() -> bytes:
    """An index that names the last shard for the first tensor."""
    body = tiny_sharded()[SHARDS]
    index = json.loads(body if isinstance(body, bytes) else bytes(body.read(0, body.size_bytes)))
    first, *_, last = sorted(index["weight_map"].items(), key=lambda item: item[1])
    index["weight_map"][first[0]] = last[1]
    return json.dumps(index).encode()


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 1048576\n".encode()

BYTES = {
    "bytes that always differ": failed(
        lambda hub, _: hub.fault(Fault.OTHER_BYTES, on=On.CDN, path=WEIGHTS, offset=PART + 7),
        "DigestMismatch", WEIGHTS, "want sha256:", "got sha256:",
    ),
    "one bit that always differs": failed(
        lambda hub, _: hub.fault(Fault.FLIP_BIT, on=On.CDN, path=WEIGHTS, offset=2 * PART),
        "DigestMismatch", WEIGHTS, "want sha256:", "got sha256:",
    ),
    "a config whose bytes always differ": failed(
        lambda hub, _: hub.fault(Fault.FLIP_BIT, on=On.RESOLVE, path="config.json"),
        "DigestMismatch", "config.json", "want git-sha1:", "got git-sha1:",
    ),
    "a small file whose bytes always differ": failed(
        lambda hub, _: hub.fault(Fault.FLIP_BIT, on=On.RESOLVE, path="tokenizer.json"),
        "DigestMismatch", "tokenizer.json", "want git-sha1:", "got git-sha1:",
    ),
    "a digest that nobody has bytes for": failed(
        weights(File(WEIGHTS, safetensors_of_size(300_000), sha256="d" * 64)),
        "DigestMismatch", "want sha256:dddd", "got sha256:", mend=mended,
    ),
    "resolve serves a pointer": failed(
        lambda hub, _: hub.fault(Fault.POINTER, on=On.RESOLVE, path=WEIGHTS), "LfsPointer", WEIGHTS,
    ),
}  # fmt: skip
HEADERS = {
    "a pointer in git": refused(weights(File(WEIGHTS, BytesBody(POINTER), lfs=False)), "LfsPointer", "1048576"),
    "a pointer in LFS": refused(weights(POINTER), "LfsPointer", WEIGHTS, "1048576"),
    "header of 2 to the 63": refused(weights(header({}, length=2**63)), "HeaderTooLong", WEIGHTS),
    "header longer than the file": refused(weights(header({}, b"12345678", length=11)), "HeaderTooLong", WEIGHTS),
    "header over 100 MB": refused(weights(header({}, bytes(200), length=100_000_001)), "HeaderTooLong", WEIGHTS),
    "header that is no JSON": refused(weights(header(b"{'a': 1}", bytes(8))), "HeaderInvalid", WEIGHTS),
    "tensors that overlap": refused(
        weights(header({"k": tensor(0, 8), "v": tensor(0, 8)}, bytes(8))), "OverlappingTensors", WEIGHTS
    ),
    "a hole between tensors": refused(
        weights(header({"a": tensor(0, 8), "b": tensor(12, 20)}, bytes(20))), "HoleInData", WEIGHTS
    ),
    "bytes behind the last tensor": refused(
        weights(header({"a": tensor(0, 8)}, bytes(8) + b"PK\3\4junk")), "TrailingData", WEIGHTS
    ),
    "a file that ends too early": refused(weights(header({"a": tensor(0, 800, (200,))}, bytes(8))), "DataTruncated"),
    "a tensor twice": refused(
        weights(header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],'
                       b'"data_offsets":[0,8]}}', bytes(8))), "DuplicateTensor", WEIGHTS, "a"
    ),
    "a shape larger than its bytes": refused(
        weights(header({"t": tensor(0, 4, (1000, 1000))}, bytes(4))), "ShapeMismatch", WEIGHTS, "4000000"
    ),
    "GGUF for safetensors": refused(weights(gguf()), "ContentTypeMismatch", WEIGHTS),
    "safetensors for GGUF": refused(a_gguf(safetensors_of_size(300)), "ContentTypeMismatch", "m-Q4_K_M.gguf"),
    "a pointer for GGUF": refused(a_gguf(POINTER), "LfsPointer", "m-Q4_K_M.gguf"),
    "GGUF of an unknown version": refused(a_gguf(gguf(version=99)), "UnknownVersion", "99"),
    "GGUF with absurd counts": refused(a_gguf(struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 2**61)), "CountTooLarge"),
    "GGUF that ends in its header": refused(a_gguf(bytes(gguf().read(0, 60))), "HeaderTruncated", "m-Q4_K_M.gguf"),
    "weights of no bytes": refused(weights(b""), "EmptyWeight", WEIGHTS),
}  # fmt: skip
LISTS = {
    "a missing shard": refused(
        lambda _, r: r.commit({k: v for k, v in tiny_sharded().items() if "00002" not in k}), "MissingShard", "00002"
    ),
    "an index that leads out": refused(
        only({**tiny_sharded(), SHARDS: json.dumps({"weight_map": {"a": "../../other/model.safetensors"}})}),
        "UnsafePath", "..",
    ),
    "an index that names the wrong shard": refused(only({**tiny_sharded(), SHARDS: misplaced()}), "IndexMismatch"),
    "no files": refused(only({}), "NoWeights"),
    "no weights": refused(only({"README.md": b"# hi\n", "config.json": llama_config()}), "NoWeights"),
    "a name that leads out": refused(has({"../evil.json": b"{}"}), "UnsafePath", ".."),
    "an absolute name": refused(has({"/etc/evil.json": b"{}"}), "UnsafePath", "/etc/evil.json"),
    "a name with a backslash": refused(has({"..\\evil.json": b"{}"}), "UnsafePath"),
    "a name with a line feed": refused(has({"a\nb.json": b"{}"}), "UnsafePath"),
    "a name of 300 bytes": refused(has({"x" * 295 + ".json": b"{}"}), "UnsafePath", "255"),
    "names that differ by case": refused(has({"Config.json": b"{}"}), "PathCollision", "onfig.json"),
    "a file of 3 TiB": refused(
        weights(File(WEIGHTS, safetensors_of_size(300_000), sha256="d" * 64, listed_size_bytes=3 * 2**40)),
        "FileTooLarge", WEIGHTS, "2.0 TiB",
    ),
    "100,000 files": refused(
        has({f"tokenizer/{n:06}.json": b"{}" for n in range(100_000)}), "TooManyFiles", "100", path="",
    ),
}  # fmt: skip
ACCESS = {
    "gated without a token": denied(access(Access.GATED), "Gated", "gated", make=small_model, mend=mended),
    "gated with another's token": denied(
        access(Access.GATED), "Gated", "gated", make=small_model, mend=mended, credential="hf_other"
    ),
    "private without a token": denied(
        access(Access.PRIVATE), "PrivateOrMissing", "private", make=small_model, mend=mended
    ),
    "missing without a token": denied(
        lambda hub, r: hub.remove(r.id), "PrivateOrMissing", "private", make=small_model, mend=mended
    ),
    "disabled": denied(access(Access.DISABLED), "Disabled", "disabled", make=small_model, mend=mended),
    "a token that is not one": denied(
        nothing, "TokenRefused", "token", make=small_model, credential="hf_bad",
        mend=lambda hub, _: hub.tokens.update(hf_bad="me"),
    ),
    "missing with a token": refused(lambda hub, r: hub.remove(r.id), "RepoNotFound", credential="hf_good"),
    "a revision that is not there": refused(
        nothing, "RevisionNotFound", "v9", path="/tree/v9", mend=lambda _, r: r.tag("v9")
    ),
    "a file that is not there": refused(
        nothing, "FileNotFound", "b.safetensors", path="/blob/main/b.safetensors",
        mend=lambda _, r: r.update({"b.safetensors": safetensors_of_size(300)}),
    ),
}  # fmt: skip
FINE = {
    "an empty file": Row(has({"__init__.py": b"", "tokenizer.model": b""})),
    "names with spaces and signs": Row(
        has({"a dir/b+c#1%20 ?.json": b"{}", "x@main.txt": b"x", "模型 😀.txt": b"y", "tokenizer/ä.json": b"{}"})
    ),
    "a path of 1000 bytes": Row(has({"/".join(["d" * 99] * 10)[:990] + "/t.json": b"{}"})),
    "an empty metadata object": Row(weights(header({"__metadata__": {}, "a": tensor(0, 8)}, bytes(8)))),
    "header in another order": Row(weights(header({"b": tensor(8, 16), "a": tensor(0, 8)}, bytes(16)))),
    "a last part of one byte": Row(nothing),
    "exactly one part": Row(weights(safetensors_of_size(PART))),
    "two paths with one content": Row(has({"a/config.json": b"{}\n", "b/config.json": b"{}\n"})),
    "a large file outside LFS": Row(weights(File(WEIGHTS, safetensors_of_size(PART + 1000), lfs=False))),
}
REFUSED = {"bytes": BYTES, "headers": HEADERS, "lists": LISTS, "access": ACCESS, "fine": FINE}


@pytest.mark.parametrize("group", REFUSED)
def test_what_must_not_be_published_is_refused_and_can_be_mended(group: str, shop: Shop) -> None:
    wrong = run(shop, REFUSED[group])

    assert not wrong, wrong
