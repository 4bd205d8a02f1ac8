"""Every form in which a model on a hub may be written, and every form that is refused."""

import pytest

from aimodels_core.errors import UnsupportedSource, UsageError
from aimodels_jobs.sources import hub_url

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OWN = "http://hub.local:8080"


@pytest.mark.parametrize(
    ("url", "repo", "revision", "select"),
    [
        ("https://huggingface.co/org/name", "org/name", None, ""),
        ("https://huggingface.co/org/name/", "org/name", None, ""),
        ("https://www.huggingface.co/org/name", "org/name", None, ""),
        ("https://HuggingFace.co/Org/Name", "Org/Name", None, ""),
        ("https://hf.co/org/name", "org/name", None, ""),
        ("https://huggingface.co/gpt2", "gpt2", None, ""),
        ("https://huggingface.co/org/tree", "org/tree", None, ""),
        ("https://huggingface.co/gpt2/tree/v1", "gpt2", "v1", ""),
        ("https://huggingface.co/gpt2/blob/main/a.bin", "gpt2", "main", "a.bin"),
        ("https://huggingface.co/org/name/tree", "org/name", None, ""),
        ("https://huggingface.co/org/name/tree/v1.0", "org/name", "v1.0", ""),
        (f"https://huggingface.co/org/name/tree/{COMMIT}", "org/name", COMMIT, ""),
        (f"https://huggingface.co/org/name/commit/{COMMIT}", "org/name", COMMIT, ""),
        ("https://huggingface.co/org/name/tree/refs/pr/7", "org/name", "refs/pr/7", ""),
        ("https://huggingface.co/org/name/tree/refs%2Fpr%2F7", "org/name", "refs/pr/7", ""),
        ("https://huggingface.co/org/name/tree/refs/convert/parquet", "org/name", "refs/convert/parquet", ""),
        ("https://huggingface.co/org/name/blob/main/sub/a.gguf", "org/name", "main", "sub/a.gguf"),
        ("https://huggingface.co/org/name/resolve/v1/a.gguf?download=true", "org/name", "v1", "a.gguf"),
        ("https://huggingface.co/org/name/raw/refs/pr/1/a/b.json", "org/name", "refs/pr/1", "a/b.json"),
        ("https://huggingface.co/org/name/blob/feature%2Fx/sub/a.gguf", "org/name", "feature/x", "sub/a.gguf"),
        ("https://huggingface.co/org/name/blob/main/a%20b%23c%3F.gguf", "org/name", "main", "a b#c?.gguf"),
        ("https://huggingface.co/org/name?revision=refs/pr/1", "org/name", "refs/pr/1", ""),
        ("https://huggingface.co/org/name?revision=refs%2Fpr%2F1", "org/name", "refs/pr/1", ""),
        ("https://huggingface.co/org/name?library=transformers&revision=a+b", "org/name", "a+b", ""),
        ("https://huggingface.co/org/name/tree/v1?revision=v1", "org/name", "v1", ""),
        ("https://huggingface.co/org/name#model-card", "org/name", None, ""),
        ("https://huggingface.co/org/name:Q4_K_M", "org/name", None, "Q4_K_M"),
        ("https://hf.co/org/name:q8_0?revision=v2", "org/name", "v2", "q8_0"),
    ],
)
def test_forms_of_urls(url: str, repo: str, revision: str | None, select: str) -> None:
    found = hub_url.parse(url)

    assert (found.endpoint, found.repo, found.revision, found.select) == (
        "https://huggingface.co",
        repo,
        revision,
        select,
    )
    assert found.tail == ()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://huggingface.co/datasets/org/name", "a dataset, not a model"),
        ("https://huggingface.co/spaces/org/name", "a space, not a model"),
        ("https://huggingface.co/docs/hub", "a page of the hub"),
        ("https://huggingface.co/api/models/org/name", "a page of the hub"),
        ("https://huggingface.co/org/name/discussions/1", "want https://huggingface.co/org/name"),
        ("https://huggingface.co/org/name/settings", "want https://huggingface.co/org/name"),
        ("https://huggingface.co", "names no model"),
        ("https://huggingface.co/", "names no model"),
        ("https://example.com/org/name", "not a host that is served"),
        ("https://huggingface.co.example.com/org/name", "not a host that is served"),
        ("https://ollama.com/library/llama3", "not a host that is served"),
        ("https://[::1/org/name", "not a URL"),
        ("http://huggingface.co/org/name", "want https"),
        ("ftp://huggingface.co/org/name", "want https"),
        ("//huggingface.co/org/name", "want https"),
        ("huggingface.co/org/name", "not a host that is served"),
        ("https://huggingface.co:443/org/name", "want no port"),
        ("https://huggingface.co:8443/org/name", "want no port"),
        ("https://huggingface.co:/org/name", "want no port"),
        ("https://huggingface.co:x/org/name", "not a URL"),
        ("https://user:secret@huggingface.co/org/name", "no user name or password"),
        ("https://secret@huggingface.co/org/name", "no user name or password"),
        ("https://huggingface.co/org/../other/name", "segments"),
        ("https://huggingface.co/org/%2e%2e/name", "segments"),
        ("https://huggingface.co/org//name", "segments"),
        ("https://huggingface.co/org/name/blob/main/../../other", "segments"),
        ("https://huggingface.co/org/name/blob/main/..%2f..%2fother", "encoded slash"),
        ("https://huggingface.co/org%2Fname", "letters, digits"),
        ("https://huggingface.co/org/name%5C..", "segments"),
        ("https://huggingface.co/org\\name", "no spaces, backslashes"),
        ("https://huggingface.co/org/na me", "no spaces, backslashes"),
        ("https://huggingface.co/org/na\nme", "no spaces, backslashes"),
        ("https://huggingface.co/org/name%00", "segments"),
        ("https://huggingface.co/org/%ff", "UTF-8"),
        ("https://huggingface.co/org/name.git", "leave out"),
        ("https://huggingface.co/org/na--me", "letters, digits"),
        ("https://huggingface.co/org/.name", "letters, digits"),
        ("https://huggingface.co/org/name:", "quantisation"),
        ("https://huggingface.co/org/name:a/b", "a page of the model"),
        ("https://huggingface.co/org/name:a:b", "quantisation"),
        ("https://huggingface.co/org/name/tree/main/sub", "a folder"),
        ("https://huggingface.co/org/name/blob/main", "want https://huggingface.co/org/name/blob/<revision>/<file>"),
        ("https://huggingface.co/org/name/tree/a?revision=b", "names two revisions"),
        ("https://huggingface.co/org/name?revision=a&revision=b", "want one"),
        ("https://huggingface.co/org/name?revision=../x", "want a branch"),
        ("https://huggingface.co/org/name?revision=", "want a branch"),
        ("https://huggingface.co/" + "a" * 3000, "at most 2048 characters"),
        ("", "not a host that is served"),
    ],
)
def test_refused_urls_say_what_to_write(url: str, says: str) -> None:
    with pytest.raises(UnsupportedSource, match=says):
        hub_url.parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://user:secret@huggingface.co/org/name",
        "https://secret@huggingface.co/org/name",
        "https://example.com/org/name?token=secret",
        "https://huggingface.co/datasets/a/b#secret",
        "user:secret@huggingface.co/org",
    ],
)
def test_secrets_of_a_url_are_not_repeated(url: str) -> None:
    with pytest.raises(UnsupportedSource) as caught:
        hub_url.parse(url)

    assert "secret" not in caught.value.message


def test_o09_a_revision_is_decoded_exactly_once() -> None:
    assert hub_url.parse("https://huggingface.co/o/n/tree/my%2525branch").revision == "my%25branch"
    assert hub_url.parse("https://huggingface.co/o/n?revision=my%2525branch").revision == "my%25branch"
    assert hub_url.parse("https://huggingface.co/o/n", revision="my%25branch").revision == "my%25branch"


@pytest.mark.parametrize(
    ("path", "names", "revision", "file"),
    [
        ("tree/feature/x", {"main", "feature/x"}, "feature/x", None),
        ("blob/feature/x/a.gguf", {"main", "feature/x"}, "feature/x", "a.gguf"),
        ("blob/feature/x/a.gguf", {"main", "feature"}, "feature", "x/a.gguf"),
        ("blob/v1/x/a.gguf", {"main"}, "v1", "x/a.gguf"),
        ("blob/a/b/c", {"a", "a/b"}, "a/b", "c"),
        ("tree/refs/heads/x", {"x", "refs/heads/x"}, "refs/heads/x", None),
    ],
)
def test_o09_slashes_in_revisions_are_settled_by_the_names_that_exist(
    path: str, names: set[str], revision: str, file: str | None
) -> None:
    found = hub_url.settle(hub_url.parse(f"https://huggingface.co/org/name/{path}"), names)

    assert (found.revision, found.file, found.tail) == (revision, file, ())


def test_a_folder_is_refused_once_the_names_are_known() -> None:
    with pytest.raises(UnsupportedSource, match="a folder"):
        hub_url.settle(hub_url.parse("https://huggingface.co/org/name/tree/v1/sub"), {"main", "v1"})


def test_a_settled_reference_stays_as_it_is() -> None:
    found = hub_url.parse("https://huggingface.co/org/name/tree/v1")

    assert hub_url.settle(found, {"other"}) is found


def test_a_revision_given_apart_overrides() -> None:
    url = "https://huggingface.co/org/name/blob/feature/x/a.gguf"
    found = hub_url.settle(hub_url.parse(url, revision="v9"), {"feature/x"})

    assert (found.revision, found.file) == ("v9", "a.gguf")
    assert hub_url.parse("https://hf.co/o/n?revision=a", revision="b").revision == "b"


@pytest.mark.parametrize(
    ("url", "endpoint", "repo"),
    [
        (f"{OWN}/org/name", OWN, "org/name"),
        ("http://HUB.local:8080/org/name/tree/v1", OWN, "org/name"),
        ("https://huggingface.co/org/name", OWN, "org/name"),
        ("http://127.0.0.1:5000/hf/org/name", "http://127.0.0.1:5000/hf", "org/name"),
        ("https://mirror.local:443/org/name", "https://mirror.local", "org/name"),
    ],
)
def test_an_explicit_endpoint_is_served_and_asked(url: str, endpoint: str, repo: str) -> None:
    found = hub_url.parse(url, endpoint=endpoint)

    assert (found.endpoint, found.repo) == (endpoint, repo)


@pytest.mark.parametrize(
    "url",
    [
        "http://hub.local:8081/org/name",
        "https://hub.local:8080/org/name",
        "http://huggingface.co/org/name",
        "http://user@hub.local:8080/org/name",
    ],
)
def test_another_origin_than_the_endpoint_is_refused(url: str) -> None:
    with pytest.raises(UnsupportedSource):
        hub_url.parse(url, endpoint=OWN)


def test_a_path_beside_that_of_the_endpoint_is_refused() -> None:
    with pytest.raises(UnsupportedSource):
        hub_url.parse("http://hub.local/hfx/org/name", endpoint="http://hub.local/hf")


@pytest.mark.parametrize(
    ("text", "repo", "revision", "select"),
    [
        ("org/name", "org/name", None, ""),
        ("gpt2", "gpt2", None, ""),
        ("org/name:Q4_K_M", "org/name", None, "Q4_K_M"),
        ("org/name@refs/pr/1", "org/name", "refs/pr/1", ""),
        ("org/name:Q8_0@v1", "org/name", "v1", "Q8_0"),
        ("https://hf.co/org/name", "org/name", None, ""),
    ],
)
def test_short_forms_of_a_command_line(text: str, repo: str, revision: str | None, select: str) -> None:
    found = hub_url.parse_argument(text)

    assert (found.repo, found.revision, found.select) == (repo, revision, select)


@pytest.mark.parametrize(
    "text", ["", "a/b/c", "./model", "/srv/model", "datasets/x", "org/name@", "org/name:x y", "../up", "org/"]
)
def test_refused_short_forms(text: str) -> None:
    with pytest.raises(UnsupportedSource):
        hub_url.parse_argument(text)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("https://huggingface.co", "https://huggingface.co"),
        ("https://huggingface.co:443/", "https://huggingface.co"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:80/hf/", "http://[::1]/hf"),
    ],
)
def test_endpoints_are_normalised(text: str, endpoint: str) -> None:
    assert hub_url.parse_endpoint(text) == endpoint
    assert hub_url.parse_endpoint(endpoint) == endpoint


@pytest.mark.parametrize(
    "text", ["", "hub.local", "ftp://hub.local", "http://", "http://a:secret@hub", "http://hub?x=secret", "http://h:x"]
)
def test_refused_endpoints(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        hub_url.parse_endpoint(text)

    assert "secret" not in caught.value.message
