"""What a hub lists, and which listings are refused."""

import pytest

from aimodels_core.digest import Digest, GitDigest
from aimodels_core.errors import (
    PlanRefused,
    SourceUnavailable,
    UnsafeContent,
    UnsupportedSource,
)
from aimodels_core.source import SourceFile
from aimodels_jobs.sources import hub_api
from tests.support.hub.faults import Fault
from tests.support.hub.repository import Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.hub_source import FILES, WEIGHTS, read_all, refused, source


def test_a_model_is_listed_with_sizes_and_digests(hub: Hub) -> None:
    found = source(hub).resolve()

    assert found.kind == "HuggingFace"
    assert found.canonical == "org/name"
    assert len(found.revision) == 40
    assert found.public
    assert found.files == (
        SourceFile("README.md", 7, git_digest=GitDigest.of(b"# name\n")),
        SourceFile("config.json", 3, git_digest=GitDigest.of(b"{}\n")),
        SourceFile("model.safetensors", len(WEIGHTS), digest=Digest.of(WEIGHTS)),
    )


def test_the_commit_is_fixed_once_and_kept_while_the_branch_moves(hub: Hub) -> None:
    repository = hub.add(Repository("org/moving", FILES))
    made = source(hub, "org/moving")
    first = made.resolve()
    repository.update({"config.json": b'{"new": 1}\n'})

    assert made.resolve() is first
    assert read_all(made, "config.json") == b"{}\n"
    assert source(hub, "org/moving").resolve().revision != first.revision


def test_a_source_read_with_a_token_is_not_public(hub: Hub) -> None:
    assert not source(hub, token="hf_good").resolve().public


def test_o07_a_renamed_repository_is_followed_and_both_names_are_kept(hub: Hub) -> None:
    hub.rename("org/name", "org/new")
    made = source(hub)
    found = made.resolve()

    assert (found.requested, found.canonical) == ("org/name", "org/new")
    assert read_all(made, "model.safetensors") == WEIGHTS
    assert read_all(made, "config.json") == b"{}\n"


def test_o07_a_repository_renamed_after_its_listing_is_still_read(hub: Hub) -> None:
    made = source(hub)
    made.resolve()
    hub.rename("org/name", "org/new")

    assert read_all(made, "config.json") == b"{}\n"


def test_o07_an_api_redirect_to_another_host_is_refused_without_the_token(hub: Hub) -> None:
    with Hub(tokens={"hf_good": "u"}) as other:
        other.add(Repository("org/name", FILES))
        hub.fault(Fault.REDIRECT, on=On.INFO, location=f"{other.url}/api/models/org/name")
        error = refused(source(hub, token="hf_good"))

        assert isinstance(error, SourceUnavailable)
        assert error.code == "ForeignRedirect"
        assert len(other.log) == 0


def test_o08_letter_case_does_not_make_another_identity(hub: Hub) -> None:
    one, two = source(hub, "org/name").resolve(), source(hub, "Org/NAME").resolve()

    assert one.canonical == two.canonical == "org/name"
    assert (one.revision, one.files) == (two.revision, two.files)


@pytest.mark.parametrize(
    ("revision", "path"),
    [
        ("refs/pr/1", "org/name/tree/refs/pr/1"),
        ("refs/pr/1", "org/name?revision=refs/pr/1"),
        ("feature/x", "org/name/tree/feature/x"),
        ("feature/x", "org/name/tree/feature%2Fx"),
        ("feature/x", "org/name/blob/feature/x/sub/a.json"),
        ("my%25branch", "org/name/tree/my%2525branch"),
    ],
)
def test_o09_revisions_with_slashes_and_percent(hub: Hub, revision: str, path: str) -> None:
    repository = Repository("org/name", FILES)
    commit = repository.commit({**FILES, "sub/a.json": b"[]\n"}, revision=revision)
    hub.add(repository)
    found = source(hub, path).resolve()

    assert found.revision == commit.hex
    assert found.select == ("sub/a.json" if "blob" in path else "")


def test_o10_reserved_characters_in_names_of_files(hub: Hub) -> None:
    names = ["C1_or_C2?_premise/a b+c#1%20.json", "x@main.txt", "模型 😀.txt", "a;b&c=d,e.txt", "%2e%2e.txt"]
    contents = {name: f"bytes {number:4}".encode() for number, name in enumerate(names)}
    hub.add(Repository("org/odd", dict(contents)))
    made = source(hub, "org/odd")

    assert {name: read_all(made, name) for name in names} == contents
    assert {file.path for file in made.resolve().files} == set(names)
    for name in names:
        assert sum(each.path == name and each.sent_bytes == len(contents[name]) for each in hub.log) == 1


def test_o11_all_pages_are_read(hub: Hub) -> None:
    hub.page_size = 1000
    hub.add(Repository("org/many", {f"f{number:04}.json": b"%d" % number for number in range(1500)}))
    hub.fault(Fault.LIST_CUT, on=On.INFO, count=1000)
    made = source(hub, "org/many")

    assert len(made.resolve().files) == 1500
    assert made.requests_made()["api"] == 3


def test_o11_no_siblings_are_no_error(hub: Hub) -> None:
    hub.fault(Fault.SIBLINGS_NULL, on=On.INFO)

    assert len(source(hub).resolve().files) == 3


def test_o11_a_listing_shorter_than_the_siblings_is_refused(hub: Hub) -> None:
    hub.fault(Fault.LIST_CUT, on=On.TREE, count=2)
    error = refused(source(hub))

    assert error.code == "ListingIncomplete"


def test_o11_a_listing_that_loops_is_refused(hub: Hub) -> None:
    hub.page_size = 1
    hub.fault(Fault.LINK_LOOP, on=On.TREE)
    error = refused(source(hub))

    assert (type(error), error.code) == (SourceUnavailable, "ListingLoop")


def test_o11_a_listing_that_goes_on_at_another_host_is_refused_without_the_token(hub: Hub) -> None:
    with Hub() as other:
        hub.fault(Fault.LINK_AWAY, on=On.TREE, location=f"{other.url}/api/models/org/name/tree/main")
        error = refused(source(hub, token="hf_good"))

        assert error.code == "ForeignRedirect"
        assert len(other.log) == 0


def test_more_files_than_can_be_published_are_refused_early(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_api, "MAX_FILES", 25)
    hub.page_size = 10
    hub.add(Repository("org/many", {f"f{number:04}.json": b"1" for number in range(100)}))
    made = source(hub, "org/many")

    assert isinstance(refused(made), PlanRefused)
    assert made.requests_made() == {"api": 4, "resolve": 0}


def test_an_unsafe_path_is_refused(hub: Hub) -> None:
    hub.add(Repository("org/bad", {"../up.json": b"{}"}))
    error = refused(source(hub, "org/bad"))

    assert (type(error), error.code) == (UnsafeContent, "UnsafePath")


def test_half_a_document_is_not_a_listing(hub: Hub) -> None:
    hub.fault(Fault.BAD_JSON, on=On.TREE)
    error = refused(source(hub))

    assert (type(error), error.code) == (SourceUnavailable, "BadAnswer")


def test_an_empty_repository_has_no_files(hub: Hub) -> None:
    hub.add(Repository("org/empty", {}))
    made = source(hub, "org/empty")

    assert made.resolve().files == ()
    assert made.requests_made() == {"api": 2, "resolve": 0}


def test_a_file_of_a_url_must_exist(hub: Hub) -> None:
    assert source(hub, "org/name/blob/main/config.json").resolve().select == "config.json"
    assert refused(source(hub, "org/name/blob/main/other.json")).code == "FileNotFound"


def test_a_folder_of_a_url_is_refused(hub: Hub) -> None:
    assert isinstance(refused(source(hub, "org/name/tree/other/sub")), UnsupportedSource)
