"""Publishing one small repository after another in tests, and what holds when one ends well or is refused.

The path is the product's own: coordinator, Hugging Face source, movers, store in a folder.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from aimodels_core import names
from aimodels_core.errors import AiModelsError
from aimodels_core.messages import PublicationState, Published, Stage, Trouble, Want
from tests.support.auditing import checkpoints, content, uploads
from tests.support.hub.log import Exchange
from tests.support.hub.repository import Content, File, Repository
from tests.support.hub.server import Hub
from tests.support.publishing import Desk, want

_NUMBERS = itertools.count(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A publication that ended well.

    Args:
        name: of the model in the store.
        repository: on the hub.
        state: of the publication.
        published: what was published.
        files: sha256 by path, as the store has them.
    """

    name: str
    repository: Repository
    state: PublicationState
    published: Published
    files: Mapping[str, str]

    @property
    def paths(self) -> set[str]:
        """What was published."""
        return set(self.files)

    def notes(self, code: str) -> list[str]:
        """Notes of a code, without it."""
        return [note.removeprefix(f"{code}: ") for note in self.published.notes if note.startswith(f"{code}: ")]


@dataclasses.dataclass(frozen=True, slots=True)
class Publisher:
    """Publishes repositories from a hub through a running coordinator."""

    hub: Hub
    desk: Desk

    def add(self, files: Mapping[str, Content | File]) -> Repository:
        """Serve a repository of a name of its own."""
        return self.hub.add(Repository(f"org/r{next(_NUMBERS)}", dict(files)))

    def want(self, repository: Repository, tail: str = "", **fields: object) -> Want:
        """A want of a repository; `tail` is written behind its URL."""
        made = want(f"{self.hub.url}/{repository.id}{tail}", repository.id.replace("/", "-"))
        return dataclasses.replace(made, **fields)  # type: ignore[arg-type]  # fields of a want

    def ready(self, files: Mapping[str, Content | File], tail: str = "") -> Outcome:
        """Publish; it must end well, with the right bytes under every published path."""
        return self.ready_of(self.add(files), tail)

    def ready_of(self, repository: Repository, tail: str = "") -> Outcome:
        """Publish a repository that is there."""
        wanted = self.want(repository, tail)
        self.desk.put(wanted)
        state = self.desk.ready(wanted.uid)
        assert state.published
        found = content(self.desk.store, names.LOCAL, wanted.name)
        served = {path: file.sha256_hex for path, file in repository.head.files.items()}
        assert found == {path: served[path] for path in found}
        return Outcome(wanted.name, repository, state, state.published, found)

    def refused(self, files: Mapping[str, Content | File], code: str, *words: str, tail: str = "") -> Trouble:
        """Publish; it must be refused for good, with a code and these words.

        Nothing is left behind but small files that were read before, which the next collection takes.
        """
        return self.refused_of(self.add(files), code, *words, tail=tail)

    def refused_of(self, repository: Repository, code: str, *words: str, tail: str = "") -> Trouble:
        """Publish a repository that is there; as `refused`."""
        wanted, store = self.want(repository, tail), self.desk.store
        before = {digest.hex for digest, _ in store.blobs()}
        state = self.desk.publish(wanted)
        assert state.trouble, state
        assert (state.stage, state.trouble.code, state.trouble.retryable) == (Stage.FAILED, code, False), state
        assert [word for word in words if word not in state.trouble.message] == [], state.trouble.message
        assert (state.attempt, state.next_retry_at, state.published) == (1, None, None)
        assert not self.has(wanted.name)
        small = {file.sha256_hex for file in repository.head.files.values() if not file.is_lfs}
        assert {digest.hex for digest, _ in store.blobs()} - before <= small
        assert (uploads(store), checkpoints(store)) == ([], [])
        return state.trouble

    def waiting_of(self, repository: Repository, *words: str) -> PublicationState:
        """Publish a repository that fails for now; nothing of it is visible. It is withdrawn afterwards."""
        wanted = self.want(repository)
        state = self.desk.publish(wanted)
        assert (state.stage, bool(state.trouble and state.trouble.retryable)) == (Stage.WAITING, True), state
        assert state.trouble
        assert [word for word in words if word not in state.trouble.message] == [], state.trouble.message
        assert not self.has(wanted.name)
        self.desk.run(self.desk.coordinator.delete(wanted.uid, scope=wanted.scope))
        return state

    def has(self, name: str) -> bool:
        """Whether the store has a model of that name."""
        try:
            content(self.desk.store, names.LOCAL, name)
        except AiModelsError:
            return False
        return True

    def asked(self, repository: Repository) -> Iterator[Exchange]:
        """What the hub was asked about a repository."""
        return (each for each in self.hub.log if each.repository.lower() == repository.id.lower())

    def payload_bytes(self, repository: Repository, path: str | None = None) -> int:
        """Bytes of a repository's files that were sent, each time counted."""
        asked = self.asked(repository)
        return sum(each.sent_bytes for each in asked if each.payload and path in (None, each.path))
