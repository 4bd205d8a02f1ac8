"""Answers of the API host that are not documents: refusals and redirects, as the hub gives them. Pure."""

import urllib.parse

from tests.support.hub import api
from tests.support.hub.repository import Commit, File, Repository
from tests.support.hub.routes import On, Route
from tests.support.hub.wire import Answer, Request


def token_of(request: Request) -> str | None:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" and value.strip() else None


def unknown_repository(token: str | None) -> Answer:
    """The hub never says whether a repository is missing or private."""
    if token is None:
        challenge = ("WWW-Authenticate", 'Bearer realm="Authentication required", charset="UTF-8"')
        return api.error(401, "Invalid username or password.", "RepoNotFound", challenge)
    return api.error(404, "Repository not found", "RepoNotFound")


def gated(repository: Repository, token: str | None) -> Answer:
    first = f"Access to model {repository.id} is restricted"
    if token is None:
        message = f"{first}. You must have access to it and be authenticated to access it. Please log in."
        return api.error(401, message, "GatedRepo")
    second = f"and you are not in the authorized list. Visit https://huggingface.co/{repository.id} to ask for access."
    return api.error(403, f"{first} {second}", "GatedRepo")


def moved(request: Request, route: Route, new: str) -> Answer:
    """A renamed repository: 307 with a relative location and no commit."""
    parts = request.path.strip("/").split("/")
    first = {On.RESOLVE: 0, On.RAW: 0, On.CACHE: 3}.get(route.on, 2)
    parts[first : first + 1 + route.repository.count("/")] = [new]
    _, mark, query = request.target.partition("?")
    return Answer(307, (("Location", f"/{'/'.join(parts)}{mark}{query}"),))


def to_cache(repository: Repository, commit: Commit, file: File) -> Answer:
    """A small file on the hub of today: 307 to a relative address that a cache in front of the hub answers."""
    place = urllib.parse.quote(f"/api/resolve-cache/models/{repository.id}/{commit.hex}/{file.path}")
    tag = f'"{file.git_hex}"'
    linked = (
        ("X-Repo-Commit", commit.hex),
        ("X-Linked-Size", str(file.size_bytes)),
        ("ETag", tag),
        ("X-Linked-Etag", tag),
    )
    return Answer(307, (*linked, ("Location", f"{place}?etag={urllib.parse.quote(tag)}")))
