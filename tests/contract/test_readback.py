"""Reading published models back through real registries, with tokens of the real issuer; what a Model then shows."""

import asyncio
import dataclasses
import datetime
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aimodels_core import names
from aimodels_core.api import MODEL, ModelObject
from aimodels_core.digest import Digest
from aimodels_core.dmcr import Place
from aimodels_core.errors import AiModelsError, ArtifactInvalid, SourceDenied, SourceUnavailable, UsageError
from aimodels_core.messages import Stage
from aimodels_core.transport import Policy
from aimodels_jobs.folder import Folder
from aimodels_jobs.layout import Store
from aimodels_operator import model as decisions
from aimodels_operator.known import Memory
from aimodels_operator.meters import Meters
from aimodels_operator.readback import ReadBacks, Reader
from aimodels_operator.writes import ReadBack
from tests.support import servers
from tests.support.artifacts import sample, write_layout
from tests.support.coordinators import listener
from tests.support.decisions import PUBLISHED, condition, seen
from tests.support.issuing import Issuing, issuing
from tests.support.modelobjects import NOW, UID, raw_model, written
from tests.support.processes import free_port
from tests.support.scripted import Call, Reply, serve
from tests.support.stores import bucket, publish

pytestmark = pytest.mark.timeout(120)

SCOPE = "ns/ai-demo"
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "empty.txt": b"",
    "copy/config.json": b'{"model_type": "bert"}',
    "model.safetensors": os.urandom(1024 * 1024 + 1),
}
WEIGHTS = Digest.of(FILES["model.safetensors"])
QUICK = Policy(connect_seconds=2.0, read_seconds=2.0, attempts=1, budget_seconds=5.0)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuing]:
    with issuing(tmp_path_factory.mktemp("issuing")) as made:
        yield made


@pytest.fixture
def token_file(issuer: Issuing, tmp_path: Path) -> Path:
    """The token of the operator's ServiceAccount."""
    issuer.accounts.down = False
    path = tmp_path / "token"
    path.write_text(issuer.accounts.add("d8-ai-models", "ai-models-operator"))
    return path


Make = Callable[..., Reader]


@pytest.fixture
def reader(issuer: Issuing, token_file: Path) -> Iterator[Make]:
    """Makes readers of a registry."""
    made: list[Reader] = []

    def make(url: str, **options: Any) -> Reader:
        redirect_url = options.pop("redirect_url", "")
        place = Place(url, str(token_file), redirect_url)
        options = {"policy": QUICK, "authorities": issuer.certificates.ca.read_text, **options}
        made.append(Reader(place, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@dataclasses.dataclass(slots=True)
class Life:
    """A Model that the coordinator has published, as the operator looks after it."""

    reader: Reader
    digest: Digest
    raw: dict[str, Any] = dataclasses.field(default_factory=raw_model)
    now: datetime.datetime = NOW

    async def _look(self, memory: Memory, meters: Meters) -> None:
        readbacks = ReadBacks(self.reader, meters, clock=lambda: 0.0, now=lambda: self.now)
        for _ in range(2):
            writes = decisions.decide(
                seen(
                    self.raw,
                    stage=Stage.READY,
                    published=dataclasses.replace(PUBLISHED, digest=str(self.digest)),
                    reading=memory.reading,
                    now=self.now,
                )
            )
            self.raw = written(self.raw, writes)
            for write in writes:
                if isinstance(write, ReadBack):
                    done = asyncio.Event()
                    readbacks.begin(memory, write, done.set)
                    await asyncio.wait_for(done.wait(), 30)

    def look(self, memory: Memory) -> tuple[str, str]:
        """Look twice, carrying out what is asked for; gives the phase and the message."""
        asyncio.run(self._look(memory, Meters()))
        return self.raw["status"]["phase"], condition(self.raw["status"], "Ready")[2]


def memory_of(life: Life) -> Memory:
    return Memory(ModelObject.from_raw(MODEL, life.raw))


def test_a_model_is_ready_when_a_token_for_its_repository_reads_all_of_it(
    tmp_path: Path, issuer: Issuing, reader: Make
) -> None:
    digest = publish(Store(Folder(tmp_path / "store")), SCOPE, UID, FILES)
    with servers.registry(tmp_path / "store", more=issuer.auth) as url:
        life = Life(reader(url), digest)

        assert life.look(memory_of(life)) == ("Ready", "")
        assert life.raw["status"]["artifact"]["digest"] == str(digest)


def test_a_blob_that_is_gone_is_told_until_it_is_back(tmp_path: Path, issuer: Issuing, reader: Make) -> None:
    digest = publish(Store(Folder(tmp_path / "store")), SCOPE, UID, FILES)
    blob = tmp_path / "store" / names.blob_data(WEIGHTS)
    data = blob.read_bytes()
    with servers.registry(tmp_path / "store", more=issuer.auth) as url:
        life = Life(reader(url), digest)
        memory = memory_of(life)
        blob.unlink()
        phase, message = life.look(memory)
        assert phase == "Publishing"
        assert message.startswith(f"registry: blob {WEIGHTS}: not in the registry")
        assert "does not serve the coordinator's store" in message
        assert life.raw["status"]["publication"]["stage"] == "Waiting"

        life.now += datetime.timedelta(minutes=10)
        assert life.look(memory) == ("Failed", message)

        blob.write_bytes(data)
        life.now += datetime.timedelta(minutes=1)
        assert life.look(memory) == ("Ready", "")


def test_a_registry_that_is_away_is_told_until_it_is_back(tmp_path: Path, issuer: Issuing, reader: Make) -> None:
    digest = publish(Store(Folder(tmp_path / "store")), SCOPE, UID, FILES)
    with servers.registry(tmp_path / "store", more=issuer.auth) as url:
        life = Life(reader(url), digest)
        memory, process = memory_of(life), listener(int(url.rpartition(":")[2]))
        os.kill(process, signal.SIGSTOP)
        try:
            phase, message = life.look(memory)
        finally:
            os.kill(process, signal.SIGCONT)
        assert (phase, "timed out" in message) == ("Publishing", True)

        life.now += datetime.timedelta(minutes=1)
        assert life.look(memory) == ("Ready", "")


async def _read(found: Reader, digest: Digest, scope: str = SCOPE) -> None:
    await found.read(scope, str(digest))


def failure(found: Reader, digest: Digest, scope: str = SCOPE) -> AiModelsError:
    """Why an artifact cannot be read."""
    with pytest.raises(AiModelsError) as caught:
        asyncio.run(_read(found, digest, scope))
    return caught.value


def test_what_the_registry_does_not_have_is_named(tmp_path: Path, issuer: Issuing, reader: Make) -> None:
    store = Store(Folder(tmp_path / "store"))
    digest = publish(store, SCOPE, UID, FILES)
    other = tmp_path / "store" / names.layer_link(SCOPE, WEIGHTS)
    with servers.registry(tmp_path / "store", more=issuer.auth) as url:
        found = reader(url)
        missing = failure(found, Digest.of(b"another"))
        elsewhere = failure(found, digest, "ns/other")
        other.unlink()
        unlinked = failure(found, digest)

    for error in (missing, elsewhere, unlinked):
        assert isinstance(error, ArtifactInvalid)
        assert error.code == "StoresDiffer"
    assert "MANIFEST_UNKNOWN" in missing.message
    assert "ns/other" in elsewhere.message
    assert str(WEIGHTS) in unlinked.message


def test_a_blob_of_another_size_is_no_blob(tmp_path: Path, issuer: Issuing, reader: Make) -> None:
    digest = publish(Store(Folder(tmp_path / "store")), SCOPE, UID, FILES)
    with (tmp_path / "store" / names.blob_data(WEIGHTS)).open("ab") as file:
        file.write(b"x")
    with servers.registry(tmp_path / "store", more=issuer.auth) as url:
        error = failure(reader(url), digest)

    assert error.code == "StoresDiffer"
    assert f"want {len(FILES['model.safetensors'])} bytes, got {len(FILES['model.safetensors']) + 1}" in error.message


def test_without_its_issuer_and_without_a_token_nothing_is_read(
    tmp_path: Path, issuer: Issuing, token_file: Path, reader: Make
) -> None:
    digest = publish(Store(Folder(tmp_path / "store")), SCOPE, UID, FILES)
    with servers.registry(tmp_path / "store", more=issuer.auth) as url:
        found = reader(url)
        stranger = failure(reader(url, authorities=lambda: ""), digest)
        issuer.accounts.down = True
        down = failure(found, digest)
        issuer.accounts.down = False
        good = token_file.read_text()
        token_file.write_text("of-nobody")
        denied = failure(found, digest)
        token_file.unlink()
        lost = failure(found, digest)
        token_file.write_text(good)
        asyncio.run(_read(found, digest))

    assert isinstance(stranger, SourceUnavailable)
    assert stranger.code == "TlsFailed"
    assert isinstance(down, SourceUnavailable)
    assert isinstance(denied, SourceDenied)
    assert isinstance(lost, UsageError)
    for error in (stranger, down, denied, lost):
        assert good not in error.message


def test_blobs_are_read_through_the_redirect_to_the_bucket(tmp_path: Path, issuer: Issuing, reader: Make) -> None:
    with servers.versitygw(tmp_path / "s3") as s3:
        digest = publish(Store(bucket(s3, "some/prefix")), SCOPE, UID, FILES)
        with servers.registry(Path("some/prefix"), s3=s3, redirect=True, more=issuer.auth) as url:
            asyncio.run(_read(reader(url, redirect_url=s3.endpoint), digest))


def test_a_manifest_that_is_no_model_is_refused(tmp_path: Path, issuer: Issuing, reader: Make) -> None:
    good = sample(FILES)
    odd = good.artifact.manifest.replace(b"cncf.model.manifest", b"oci.something.else")
    other = dataclasses.replace(good.artifact, manifest=odd, digest=Digest.of(odd))
    write_layout(tmp_path / "store", SCOPE, {UID: dataclasses.replace(good, artifact=other)})
    with servers.registry(tmp_path / "store", more=issuer.auth) as url:
        error = failure(reader(url), other.digest)

    assert isinstance(error, ArtifactInvalid)
    assert "not a model: manifest.artifactType" in error.message


def test_the_time_for_one_model_is_bounded(tmp_path: Path, issuer: Issuing, reader: Make) -> None:
    digest = publish(Store(Folder(tmp_path / "store")), SCOPE, UID, FILES)
    times = iter(range(0, 10_000, 100))
    with servers.registry(tmp_path / "store", more=issuer.auth) as url:
        error = failure(reader(url, seconds=99.0, clock=lambda: float(next(times))), digest)

    assert (error.code, "within 99 s" in error.message) == ("TimedOut", True)


def test_a_registry_that_nobody_serves_is_told(reader: Make) -> None:
    assert failure(reader(f"http://127.0.0.1:{free_port()}"), Digest.of(b"")).code == "ConnectFailed"


def test_the_end_of_the_operator_ends_what_is_being_read(reader: Make) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hang(_: Call) -> Reply:
        asked.set()
        return Reply(hold=answer)

    async def end(found: Reader) -> None:
        task = asyncio.create_task(_read(found, Digest.of(b"")))
        assert await asyncio.to_thread(asked.wait, 20)
        found.close()
        with pytest.raises(AiModelsError):
            await asyncio.wait_for(task, 20)

    with serve(hang) as server:
        asyncio.run(end(reader(server.url, policy=Policy(read_seconds=600.0))))
        answer.set()
