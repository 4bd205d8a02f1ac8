"""GGUF files that must not be published, and odd ones that must; sets of them, and which one is chosen.

What each kind of damage is called is tested beside the parser; here is what becomes of a publication (O-26 to O-34).
"""

import struct
import time
from collections.abc import Mapping, Sequence

import pytest

from tests.support.hub.repository import Content, File
from tests.support.oddweights import ARCH, CLIP, Info, Pair, gg
from tests.support.publisher import Publisher

# GGUF

_B = ("b", (4, 1073741823, 1073741825, 1), 0, 256)
_NO: Sequence[Info] = ()
BAD_GGUF: Mapping[str, tuple[bytes, str, tuple[str, ...]]] = {
    "o27 key": (gg([ARCH, ARCH], _NO, b""), "DuplicateKey", ("general.architecture",)),
    "o27 tensor": (gg([ARCH], [("t", (8,), 0, 0), ("t", (8,), 0, 32)], bytes(64)), "DuplicateTensor", ("'t'",)),
    "o28 keys": (gg([ARCH], _NO, b"", counts=(0, 2**60)), "CountTooLarge", ()),
    "o28 tensors": (gg([ARCH], _NO, b"", counts=(2**60, 1)), "CountTooLarge", ()),
    "o28 array": (gg([("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2**40))], _NO, b""), "CountTooLarge", ()),
    "o28 key length": (gg((), _NO, struct.pack("<Q", 2**63), counts=(0, 1), align=1), "CountTooLarge", ()),
    "o29 0": (gg([ARCH, ("general.alignment", 4, 0)]), "BadAlignment", ("0",)),
    "o29 2^31": (gg([ARCH, ("general.alignment", 4, 2**31)]), "BadAlignment", (str(2**31),)),
    "o30": (gg([ARCH], [("a", (64,), 0, 0), _B], bytes(256)), "DataTruncated", ("'b' ends at",)),
    "o31": (gg(data=bytes(16)), "DataTruncated", ("ends at",)),
    "version": (gg(version=77), "UnknownVersion", ("77",)),
}


@pytest.mark.parametrize("case", BAD_GGUF)
def test_o27_o28_o29_o30_o31_a_broken_gguf_is_refused_at_once(cases: Publisher, case: str) -> None:
    data, code, words = BAD_GGUF[case]
    begun = time.process_time()
    cases.refused({"m.gguf": data}, code, "m.gguf", *words)

    assert time.process_time() - begun < 1


def test_o26_a_big_endian_gguf_is_published_with_a_note(cases: Publisher) -> None:
    found = cases.ready({"m.gguf": gg(order=">")})

    assert found.notes("BigEndian") == ["m.gguf: big-endian; little-endian nodes cannot load it"]
    assert found.published.resolved["architecture"] == "llama"


def test_o29_an_alignment_of_24_is_published_with_a_note(cases: Publisher) -> None:
    found = cases.ready({"m.gguf": gg([ARCH, ("general.alignment", 4, 24)], align=24)})

    assert "llama.cpp does not load it" in found.notes("AlignmentNotPowerOfTwo")[0]


def test_o31_pieces_cut_by_bytes_are_refused_with_a_word_on_joining(cases: Publisher) -> None:
    halves: dict[str, Content | File] = {f"m.Q5_K_M.gguf.part{k}of2": gg()[:60] for k in (1, 2)}

    cases.refused(halves, "NoWeights", "m.Q5_K_M.gguf.part1of2", "join the pieces")


# Sets of GGUF


def piece(number: int, count: int = 3, *, total: int = 3) -> bytes:
    """A shard as llama.cpp's splitter writes it; only the first says what the model is."""
    pairs: list[Pair] = [("split.no", 4, number), ("split.count", 4, count), ("split.tensors.count", 4, total)]
    return gg([*pairs, *([ARCH] if number == 0 else [])], [(f"t{number}", (8,), 0, 0)])


SET: Mapping[str, Content | File] = {f"Q4/m-0000{k + 1}-of-00003.gguf": piece(k) for k in range(3)}


def test_o32_a_split_model_is_published_as_one(cases: Publisher) -> None:
    found = cases.ready(SET)

    assert found.paths == set(SET)
    assert found.state.bytes_total == sum(file.size_bytes for file in found.repository.head.files.values())
    assert found.published.resolved["architecture"] == "llama"


def test_o32_a_missing_piece_is_refused_before_anything_is_read(cases: Publisher) -> None:
    missing = "Q4/m-00002-of-00003.gguf"
    repository = cases.add({path: data for path, data in SET.items() if path != missing})
    cases.refused_of(repository, "MissingShard", missing)

    assert cases.payload_bytes(repository) == 0


def test_o32_a_piece_of_another_set_is_refused(cases: Publisher) -> None:
    cases.refused(
        {**SET, "Q4/m-00002-of-00003.gguf": piece(2)}, "SplitMismatch", "Q4/m-00002-of-00003.gguf", "split.no"
    )


def test_o33_names_that_only_look_like_shards_are_told_apart(cases: Publisher) -> None:
    assert cases.ready({"best-of-breed.gguf": gg()}).paths == {"best-of-breed.gguf"}
    assert cases.ready({"m-00001-of-00001.gguf": gg()}).paths == {"m-00001-of-00001.gguf"}
    malformed: dict[str, Content | File] = {"m-00000-of-00003.gguf": gg(), "m-00004-of-00003.gguf": gg()}
    cases.refused(malformed, "MalformedShards", *malformed)
    beside = cases.ready({"best-of-breed.gguf": gg(), **malformed})
    assert beside.paths == {"best-of-breed.gguf"}
    assert sum("malformed set" in note for note in beside.notes("LeftOut")) == 2


QUANTS = (
    *("Q2_K", "q3_k_s", "Q3_K_M", "Q3_K_L", "q4_0", "Q4_1", "Q4_K_S", "q4_k_m", "Q5_0", "Q5_1", "Q5_K_S", "Q5_K_M"),
    *("Q6_K", "q8_0", "F16", "BF16", "IQ2_XXS", "IQ3_M", "IQ4_XS", "TQ1_0"),
)
MANY: Mapping[str, Content | File] = {
    **{f"M-{quant}.gguf": gg(data=bytes([at]) * 32) for at, quant in enumerate(QUANTS)},
    "mmproj-F16.gguf": gg([CLIP]),
    "imatrix.gguf": gg([ARCH, ("general.type", 8, "imatrix")]),
}


@pytest.mark.parametrize("tail", ["", ":Q4_K_M", ":q4_K_m", "/blob/main/M-q4_k_m.gguf"])
def test_o34_one_quantisation_and_the_projector_are_published(cases: Publisher, tail: str) -> None:
    found = cases.ready(MANY, tail)

    assert found.paths == {"M-q4_k_m.gguf", "mmproj-F16.gguf"}
    assert {each.path for each in cases.asked(found.repository) if each.payload} <= found.paths


def test_o34_without_the_default_the_choice_is_listed(cases: Publisher) -> None:
    cases.refused({"M-Q8_0.gguf": gg(), "M-Q3_K_M.gguf": gg()}, "ChooseOne", "choose one of: Q3_K_M, Q8_0")


@pytest.mark.parametrize("pairs", [[CLIP], [ARCH, ("general.type", 8, "imatrix")]])
def test_o34_the_header_decides_what_is_a_model(cases: Publisher, pairs: list[Pair]) -> None:
    cases.refused({"weights.gguf": gg(pairs)}, "NotAModel", "weights.gguf", "want a model")
