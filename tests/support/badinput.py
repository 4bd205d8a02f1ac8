"""Bad input as a table: what is spoiled, what must be seen, how it is mended; and a runner for many rows at once.

Each row publishes from a hub of its own, under a name that stands for an older good model, which must stay until the
new one is whole. Rows of one run share a coordinator, so that they also show that one bad model harms no other.
"""

import concurrent.futures
import dataclasses
import zlib
from collections.abc import Callable, Iterator, Mapping

from aimodels_core import names
from aimodels_core.messages import PublicationState, Stage, Want
from tests.support.auditing import audit, checkpoints, content, uploads
from tests.support.hub.limits import Limits
from tests.support.hub.repository import Repository
from tests.support.hub.server import Hub
from tests.support.publishing import Shop, good_model, wanted

_AT_ONCE = 12
TOKENS = {"hf_good": "someone", "hf_other": "another"}

Spoil = Callable[[Hub, Repository], object]


def nothing(hub: Hub, repository: Repository) -> None:
    """Leave everything as it is."""


def forget_faults(hub: Hub, repository: Repository) -> None:
    """End every fault."""
    hub.rules.clear()


def small_model(repository: str, *, seed: int) -> Repository:
    """A model whose weights fit in one part."""
    return good_model(repository, weights_bytes=200_000, seed=seed)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One bad input.

    Args:
        spoil: makes it bad.
        stage: what the publication comes to.
        code: of its trouble.
        says: what the message must contain.
        attempts: how many it may take, where it heals by itself.
        mend: makes it good again; None when it cannot be.
        make: the repository.
        credential: token for the hub.
        path: what the want names behind the repository.
        denied: access is denied: it fails, and is tried again when access may have been granted.
    """

    spoil: Spoil
    stage: Stage = Stage.READY
    code: str = ""
    says: tuple[str, ...] = ()
    attempts: int = 1
    mend: Spoil | None = forget_faults
    make: Callable[..., Repository] = good_model
    credential: str = ""
    path: str = ""
    denied: bool = False


def failed(spoil: Spoil, code: str, *says: str, **more: object) -> Row:
    """A row that fails for good."""
    return Row(spoil, Stage.FAILED, code, says, **more)  # type: ignore[arg-type]  # fields of a row


def denied(spoil: Spoil, code: str, *says: str, **more: object) -> Row:
    """A row that fails until access is granted."""
    return Row(spoil, Stage.FAILED, code, says, denied=True, **more)  # type: ignore[arg-type]  # fields of a row


def waits(spoil: Spoil, code: str, *says: str, **more: object) -> Row:
    """A row that is tried again until it is mended."""
    return Row(spoil, Stage.WAITING, code, says, **more)  # type: ignore[arg-type]  # fields of a row


@dataclasses.dataclass(slots=True)
class _Trial:
    """One row on its way."""

    name: str
    row: Row
    hub: Hub
    repository: Repository
    want: Want

    def first(self, shop: Shop) -> Iterator[str]:
        """Publish the bad input; say what is not as it should be."""
        rules = list(self.hub.rules._rules)
        state = shop.desk.publish(self.want)
        if self.row.stage is Stage.READY:
            state = shop.desk.until(self.want.uid, lambda s: s.stage in (Stage.READY, Stage.FAILED), "Ready")
            yield from self._is_ready(shop, state)
            yield from ("a fault was never met" for rule in rules if not rule.hits)
            return
        yield from self._is_refused(state)
        if str(shop.desk.store.resolve_tag(names.LOCAL, self.want.uid)) != shop.good:
            yield "the older model is lost"

    def _is_ready(self, shop: Shop, state: PublicationState) -> Iterator[str]:
        if state.stage is not Stage.READY:
            yield f"want Ready, got {state.stage}: {state.trouble}"
            return
        if state.attempt > self.row.attempts:
            yield f"want {self.row.attempts} attempts, got {state.attempt}"
        files = {file.path: file.sha256_hex for file in self.repository.head.files.values()}
        got = content(shop.desk.store, names.LOCAL, self.name)
        if not got.items() <= files.items() or not got:
            yield f"other content: {got}"

    def _is_refused(self, state: PublicationState) -> Iterator[str]:
        trouble = state.trouble
        if state.stage is not self.row.stage or trouble is None:
            yield f"want {self.row.stage}, got {state.stage}: {trouble}"
            return
        if trouble.code != self.row.code:
            yield f"want code {self.row.code}, got {trouble}"
        yield from (
            f"want {part!r} in the message, got {trouble}" for part in self.row.says if part not in trouble.message
        )
        if trouble.retryable is not (state.stage is Stage.WAITING or self.row.denied):
            yield f"retryable: {trouble}"

    def mended(self, shop: Shop) -> Iterator[str]:
        """Mend it and see it published."""
        if self.row.stage is Stage.READY or self.row.mend is None:
            return
        self.row.mend(self.hub, self.repository)
        if self.row.stage is Stage.FAILED:
            shop.desk.publish(dataclasses.replace(self.want, generation=2))
        state = shop.desk.until(self.want.uid, lambda s: s.stage in (Stage.READY, Stage.FAILED), "Ready")
        yield from (f"mended: {fault}" for fault in self._is_ready(shop, state) if "attempts" not in fault)


def run(shop: Shop, rows: Mapping[str, Row]) -> str:
    """Try all rows, several at once; gives what is wrong, a line for each, nothing when all is right."""
    trials = [_trial(shop, name, row) for name, row in rows.items()]
    try:
        found = _each(trials, lambda trial: list(trial.first(shop)))
        waiting = {t.repository.head.files["model.safetensors"].sha256_hex for t in trials if _waits(t)}
        for key in (*uploads(shop.desk.store), *checkpoints(shop.desk.store)):
            if not any(digest in key for digest in waiting):
                found.setdefault("left behind", []).append(key)
        for name, wrong in _each(trials, lambda trial: list(trial.mended(shop))).items():
            found.setdefault(name, []).extend(wrong)
        for key in (*uploads(shop.desk.store), *checkpoints(shop.desk.store)):
            found.setdefault("left behind", []).append(key)
        audit(shop.desk.store)
        return "\n".join(f"{name}: {line}" for name, lines in found.items() for line in lines)
    finally:
        for trial in trials:
            trial.hub.close()


def _waits(trial: _Trial) -> bool:
    return trial.row.stage is Stage.WAITING and "model.safetensors" in trial.repository.head.files


def _trial(shop: Shop, name: str, row: Row) -> _Trial:
    tag = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")[:60]
    hub = Hub(limits=Limits.unlimited(), tokens=TOKENS)
    repository = hub.add(row.make(f"org/{tag}", seed=zlib.crc32(name.encode())))
    row.spoil(hub, repository)
    made = wanted(hub, shop.give(tag), f"{repository.id}{row.path}", credential=row.credential)
    return _Trial(tag, row, hub, repository, made)


def _each(trials: list[_Trial], call: Callable[[_Trial], list[str]]) -> dict[str, list[str]]:
    def one(trial: _Trial) -> list[str]:
        try:
            return call(trial)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]

    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        found = dict(zip((trial.name for trial in trials), pool.map(one, trials), strict=True))
    return {name: wrong for name, wrong in found.items() if wrong}
