"""The documents of the API host: model information, listings, refs, errors. Pure: values in, answers out."""

import base64
import hashlib
import json
import urllib.parse
from collections.abc import Sequence
from typing import Any

from tests.support.hub import faults
from tests.support.hub.bodies import BytesBody
from tests.support.hub.faults import Fault, Rule
from tests.support.hub.repository import Access, Commit, File, Repository
from tests.support.hub.wire import Answer

_DATE = "2025-06-01T12:00:00.000Z"


def document(content: object, *headers: tuple[str, str], status: int = 200) -> Answer:
    """Answer with a JSON document."""
    body = BytesBody(json.dumps(content, ensure_ascii=False).encode())
    return Answer(status, (("Content-Type", "application/json; charset=utf-8"), *headers), body)


def error(status: int, message: str, code: str | None = None, *headers: tuple[str, str]) -> Answer:
    """Answer with an error as the hub words it: in the body, in X-Error-Message and, mostly, in X-Error-Code."""
    told = () if code is None else (("X-Error-Code", code),)
    return document({"error": message}, *told, ("X-Error-Message", message), *headers, status=status)


def whoami(name: str) -> Answer:
    """Who a token belongs to."""
    token = {"displayName": "token", "role": "read", "createdAt": _DATE}
    account = {"type": "user", "id": _short(name), "name": name, "fullname": name, "isPro": False, "orgs": []}
    return document({**account, "auth": {"type": "access_token", "accessToken": token}})


def info(repository: Repository, commit: Commit, *, blobs: bool, rules: Sequence[Rule] = ()) -> Answer:
    """Information about a model at one commit, with its siblings."""
    siblings: list[dict[str, Any]] | None = [_sibling(file, blobs=blobs) for _, file in sorted(commit.files.items())]
    if (cut := faults.find(rules, Fault.LIST_CUT)) is not None and siblings is not None:
        siblings = siblings[: cut.count]
    if faults.find(rules, Fault.SIBLINGS_NULL) is not None:
        siblings = None
    content = {
        "_id": _short(repository.id),
        "id": repository.id,
        "modelId": repository.id,
        "author": repository.id.partition("/")[0] if "/" in repository.id else None,
        "sha": commit.hex,
        "lastModified": _DATE,
        "createdAt": _DATE,
        "private": repository.access is Access.PRIVATE,
        "gated": "manual" if repository.access is Access.GATED else False,
        "disabled": repository.access is Access.DISABLED,
        "downloads": 1,
        "likes": 1,
        "tags": list(repository.tags),
        "library_name": repository.library,
        "siblings": siblings,
        "usedStorage": sum(file.size_bytes for file in commit.files.values()),
    }
    return document(content)


def _sibling(file: File, *, blobs: bool) -> dict[str, Any]:
    if not blobs:
        return {"rfilename": file.path}
    shown: dict[str, Any] = {"rfilename": file.path, "size": file.size_bytes, "blobId": file.git_hex}
    if file.is_lfs:
        shown["lfs"] = {"sha256": file.sha256_hex, "size": file.size_bytes, "pointerSize": len(file.pointer)}
    return shown


def tree(
    commit: Commit,
    path: str,
    query: dict[str, str],
    *,
    url: str,
    page_size: int,
    rules: Sequence[Rule] = (),
) -> Answer:
    """One page of a listing. `url` is the absolute URL of this listing, without its query."""
    below = f"{path}/" if path else ""
    if path and path not in commit.directories:
        return error(404, f"{path} does not exist on this revision", "EntryNotFound")
    recursive = query.get("recursive", "").lower() in ("true", "1")
    names = _names(commit, below, recursive=recursive)
    size = min(page_size, int(query.get("limit") or page_size))
    begin = _from_cursor(query.get("cursor"))
    rows = [
        entry(commit, name, expand=query.get("expand", "").lower() in ("true", "1"))
        for name in names[begin : begin + size]
    ]
    return _page(rows, begin, begin + size if begin + size < len(names) else None, query, url, rules)


def _names(commit: Commit, below: str, *, recursive: bool) -> Sequence[str]:
    if recursive and not below:
        return commit.paths
    return [name for name in commit.paths if name.startswith(below) and (recursive or "/" not in name[len(below) :])]


def _page(
    rows: list[dict[str, Any]],
    begin: int,
    following: int | None,
    query: dict[str, str],
    url: str,
    rules: Sequence[Rule],
) -> Answer:
    if (cut := faults.find(rules, Fault.LIST_CUT)) is not None:
        return document(rows[: cut.count])
    target = following
    if faults.find(rules, Fault.LINK_LOOP) is not None:
        target = begin
    link = None
    if target is not None:
        link = f"{url}?{urllib.parse.urlencode({**query, 'cursor': _to_cursor(target)})}"
    if (away := faults.find(rules, Fault.LINK_AWAY)) is not None:
        link = away.location
    return document(rows) if link is None else document(rows, ("Link", f'<{link}>; rel="next"'))


def entry(commit: Commit, path: str, *, expand: bool) -> dict[str, Any]:
    """One row of a listing: a file or a directory."""
    file = commit.files.get(path)
    if file is None:
        oid = hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()
        row: dict[str, Any] = {"type": "directory", "oid": oid, "size": 0, "path": path}
    else:
        row = {"type": "file", "oid": file.git_hex, "size": file.size_bytes, "path": path}
        if file.is_lfs:
            row["lfs"] = {"oid": file.sha256_hex, "size": file.size_bytes, "pointerSize": len(file.pointer)}
    if expand:
        row["lastCommit"] = {"id": commit.hex, "title": commit.title, "date": _DATE}
    return row


def paths_info(commit: Commit, body: bytes) -> Answer:
    """Rows of the paths that a form or a JSON document names."""
    try:
        asked = json.loads(body)
        names, expand = asked["paths"], bool(asked.get("expand"))
    except ValueError:
        form = urllib.parse.parse_qs(body.decode())
        names, expand = form.get("paths", []), form.get("expand", ["false"])[-1].lower() == "true"
    names = [names] if isinstance(names, str) else names
    return document([entry(commit, name, expand=expand) for name in names if name in commit.paths])


def refs(repository: Repository, *, pull_requests: bool) -> Answer:
    """Names that point at commits."""
    branches, pulls = [], []
    for name, commit in repository.branches.items():
        if name.startswith("refs/pr/"):
            pulls.append({"name": name.rpartition("/")[2], "ref": name, "targetCommit": commit})
        elif not name.startswith("refs/"):
            branches.append({"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit})
    tags = [
        {"name": name, "ref": f"refs/tags/{name}", "targetCommit": hex_} for name, hex_ in repository.git_tags.items()
    ]
    content: dict[str, Any] = {"tags": tags, "branches": branches, "converts": []}
    return document({**content, "pullRequests": pulls} if pull_requests else content)


def _to_cursor(index: int) -> str:
    return base64.urlsafe_b64encode(json.dumps({"at": index}).encode()).decode()


def _from_cursor(cursor: str | None) -> int:
    return 0 if cursor is None else int(json.loads(base64.urlsafe_b64decode(cursor))["at"])


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:24]
