"""Which GGUF of a repository is published."""

import pytest

from aimodels_core.errors import NoWeights
from aimodels_core.source import SourceFile
from aimodels_jobs import formats, quants
from aimodels_jobs.formats import Format, Selection

QUANTS = (
    *("Q2_K", "q3_k_s", "Q3_K_M", "Q3_K_L", "q4_0", "Q4_1", "Q4_K_S", "q4_k_m", "Q5_0", "Q5_1", "Q5_K_S", "Q5_K_M"),
    *("Q6_K", "q8_0", "F16", "BF16", "IQ2_XXS", "IQ3_M", "IQ4_XS", "TQ1_0"),
)
REPOSITORY = (*(f"M-{quant}.gguf" for quant in QUANTS), "mmproj-F16.gguf", "imatrix.gguf", "README.md")
SET = tuple(f"Q4/m-0000{k}-of-00003.gguf" for k in (1, 2, 3))


def select(*paths: str, choose: str = "") -> Selection:
    return formats.select([SourceFile(path, 100) for path in paths], choose=choose)


def weights(selection: Selection) -> set[str]:
    return {item.path for item in selection.weights}


@pytest.mark.parametrize("choose", ["Q4_K_M", "q4_K_m", "", "M-q4_k_m.gguf", "m-Q4_K_M.gguf"])
def test_o34_one_quantisation_and_the_projector(choose: str) -> None:
    found = select(*REPOSITORY, choose=choose)

    assert found.format is Format.GGUF
    assert weights(found) == {"M-q4_k_m.gguf", "mmproj-F16.gguf"}
    assert found.entry == "M-q4_k_m.gguf"
    assert "README.md" in found.paths
    assert {item.path for item in found.dropped} == {*REPOSITORY[:-1]} - weights(found)


@pytest.mark.parametrize("quant", QUANTS)
def test_every_quantisation_is_read_from_its_name(quant: str) -> None:
    assert quants.quant_of(f"M-7B-{quant}.gguf") == quant.upper()
    assert weights(select(*REPOSITORY, choose=quant)) == {f"M-{quant}.gguf", "mmproj-F16.gguf"}


def test_o34_without_a_default_the_choice_is_listed() -> None:
    with pytest.raises(NoWeights, match="choose one of: Q3_K_M, Q8_0") as caught:
        select("M-Q8_0.gguf", "M-Q3_K_M.gguf")

    assert caught.value.code == "ChooseOne"


def test_a_quantisation_that_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(NoWeights, match="Q5_0: no such file or quantisation; choose one of: Q8_0"):
        select("M-Q8_0.gguf", choose="Q5_0")


def test_two_models_of_one_quantisation_must_be_told_apart() -> None:
    with pytest.raises(NoWeights, match=r"big-Q4_K_M\.gguf, small-Q4_K_M\.gguf"):
        select("big-Q4_K_M.gguf", "small-Q4_K_M.gguf")

    assert weights(select("big-Q4_K_M.gguf", "small-Q4_K_M.gguf", choose="small-Q4_K_M.gguf")) == {"small-Q4_K_M.gguf"}


def test_a_lone_file_needs_no_quantisation() -> None:
    assert select("weights.gguf").entry == "weights.gguf"


@pytest.mark.parametrize("choose", ["", SET[0], SET[1]])
def test_o32_a_split_model_is_taken_as_one(choose: str) -> None:
    found = select(*SET, choose=choose)

    assert weights(found) == set(SET)
    assert found.entry == SET[0]
    assert found.size_bytes == 300


def test_o32_a_missing_piece_is_refused_by_name() -> None:
    with pytest.raises(NoWeights, match=r"missing Q4/m-00002-of-00003\.gguf") as caught:
        select(SET[0], SET[2])

    assert caught.value.code == "MissingShard"


def test_a_missing_piece_of_another_quantisation_does_no_harm() -> None:
    assert weights(select("M-Q4_K_M.gguf", "M-Q8_0-00001-of-00002.gguf")) == {"M-Q4_K_M.gguf"}


def test_quantisations_may_be_told_by_folder() -> None:
    paths = ("Q4_K_M/m-00001-of-00001.gguf", "Q8_0/m-00001-of-00001.gguf", "UD-Q4_K_XL/m-00001-of-00001.gguf")

    assert select(*paths).entry == paths[0]
    assert select(*paths, choose="ud-q4_k_xl").entry == paths[2]
    assert select(*paths, choose="Q4_K_XL").entry == paths[2]


def test_o33_names_that_only_look_like_shards() -> None:
    assert select("best-of-breed.gguf").entry == "best-of-breed.gguf"
    assert select("m-00001-of-00001.gguf").entry == "m-00001-of-00001.gguf"
    with pytest.raises(NoWeights) as caught:
        select("m-00000-of-00003.gguf", "m-00004-of-00003.gguf")
    assert caught.value.code == "MalformedShards"


def test_o33_malformed_names_beside_a_model_are_reported() -> None:
    found = select("best-of-breed.gguf", "m-00004-of-00003.gguf")

    assert [item.why for item in found.dropped] == ["malformed set: the shard number is not within its count"]


def test_o31_a_piece_cut_by_bytes_gets_its_own_message() -> None:
    with pytest.raises(NoWeights, match=r"m\.Q5_K_M\.gguf\.part1of2 is a piece of a GGUF cut by bytes: join"):
        select("m.Q5_K_M.gguf.part1of2", "m.Q5_K_M.gguf.part2of2")

    found = select("m.Q4_K_M.gguf", "m.Q5_K_M.gguf.part1of2")
    assert "join the pieces" in found.dropped[0].why


def test_a_projector_alone_is_no_model() -> None:
    with pytest.raises(NoWeights, match="projectors"):
        select("mmproj-F16.gguf")


def test_the_projector_of_the_same_folder_in_half_precision_is_taken() -> None:
    paths = ("a/m-Q4_K_M.gguf", "a/mmproj-F32.gguf", "a/mmproj-F16.gguf", "mmproj-F16.gguf")

    assert weights(select(*paths)) == {"a/m-Q4_K_M.gguf", "a/mmproj-F16.gguf"}


def test_one_file_is_taken_rather_than_the_same_model_in_shards() -> None:
    paths = ("M-Q4_K_M.gguf", "M-Q4_K_M-00001-of-00002.gguf", "M-Q4_K_M-00002-of-00002.gguf")

    assert weights(select(*paths)) == {"M-Q4_K_M.gguf"}
