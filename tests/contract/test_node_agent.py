"""An agent over real folders: what Pods use comes, stays, goes when room is needed; wrong and half files are found."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from aimodels_core import pull
from aimodels_core.digest import Digest
from aimodels_core.errors import Cancelled, NotPublished
from aimodels_core.nodes import NodeReport, NodeWant, Warm
from aimodels_nodecache.agent import Agent
from aimodels_nodecache.cache import Cache, blobs_of
from aimodels_nodecache.fetching import Progress
from aimodels_nodecache.podrecords import PodRecord, PodRecords, RecordedModel
from aimodels_nodecache.trees import MARK, NodeTrees
from tests.support.artifacts import MemoryBlobs, Sample, files_in, sample

ONE = sample({"config.json": b"{}", "model.safetensors": b"weights" * 1000, "same.bin": b"shared" * 500})
TWO = sample({"config.json": b"{2}", "model.gguf": b"other" * 900, "same.bin": b"shared" * 500})
SECONDS = 20.0
pytestmark = pytest.mark.asyncio


async def eventually(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(SECONDS):
        while not await true():  # noqa: ASYNC110 - folders and reports tell nobody
            await asyncio.sleep(0.02)


class Shelf:
    """Artifacts in memory, by repository; fetched as a node does it. Implements `fetching.Source`."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.blobs = MemoryBlobs([])
        self.where: dict[Digest, str] = {}
        self.held = threading.Event()
        self.held.set()
        self.ended = threading.Event()
        self.asked: list[tuple[str, ...]] = []

    def add(self, one: Sample, repository: str = "ns/team") -> None:
        self.blobs.samples.append(one)
        self.where[one.digest] = repository

    def size(self, digest: Digest, repositories: Sequence[str]) -> int:
        self._look(digest, repositories)
        return next(sum(map(len, one.files.values())) for one in self.blobs.samples if one.digest == digest)

    def fetch(self, digest: Digest, repositories: Sequence[str], device: Path, progress: Progress) -> None:
        self._look(digest, repositories)
        while not self.held.wait(0.01):
            if progress.stopped():
                self.ended.set()
                raise Cancelled("not wanted")
        self._cache.prepare(device)
        target, hooks = device / "trees" / digest.hex, pull.Hooks(progress=progress.add)
        pull.pull(self.blobs, digest, target, hooks=hooks, known=blobs_of(device))
        self._cache.share(device, digest)

    def _look(self, digest: Digest, repositories: Sequence[str]) -> None:
        self.asked.append(tuple(repositories))
        if self.where.get(digest) not in repositories:
            raise NotPublished(f"{digest}: not there")


class Node:
    """A node's folder, its records, its agent."""

    def __init__(self, root: Path, devices: Sequence[str] = ("one",)) -> None:
        self.root = root
        for name in devices:
            (root / "devices" / name).mkdir(parents=True, exist_ok=True)
            (root / "devices" / name / MARK).touch()
        self.cache, self.records = Cache(root), PodRecords(root / "records")
        self.shelf = Shelf(self.cache)
        self.agent = Agent("n", root, self.shelf, self.cache, audit_bytes_per_second=1 << 30, check_seconds=0.5)

    def place(self, uid: str, one: Sample, namespace: str = "team") -> None:
        """Record a Pod that gets an artifact."""
        self.records.write(PodRecord(uid, namespace, "web", (RecordedModel("m", one.digest),)))

    def tree(self, one: Sample) -> Path | None:
        """Where the driver would find an artifact."""
        return NodeTrees(self.root).tree(one.digest)

    async def want(self, *models: Warm, cache_bytes: int = 0) -> None:
        """Tell the agent what to warm."""
        await self.agent.want(NodeWant("n", models, cache_bytes).to_json())

    async def until(self, true: Callable[[NodeReport], bool]) -> NodeReport:
        """Wait for a report of that kind."""
        last: list[NodeReport] = []

        async def told() -> bool:
            last[:] = [await self.agent.report()]
            return true(last[0])

        await eventually(told)
        return last[0]

    @contextlib.asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        """Run the agent."""
        task = asyncio.create_task(self.agent.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def says(agent: Agent, words: str) -> bool:
    return (await agent.report()).trouble == words


async def whole(node: Node, asked: int) -> bool:
    """Whether the artifact was fetched once more since, and is as it should be. A report may be from before."""
    tree = node.tree(ONE)
    return len(node.shelf.asked) > asked and tree is not None and files_in(tree) == dict(ONE.files)


def holds(*samples: Sample) -> Callable[[NodeReport], bool]:
    return lambda report: {one.digest for one in report.held} == {str(one.digest) for one in samples}


async def test_what_a_pod_uses_comes_from_its_namespace_or_the_cluster(node: Node) -> None:
    node.shelf.add(ONE)
    node.shelf.add(TWO, "cluster")
    node.place("a", ONE)
    node.place("b", TWO)
    async with node.runs():
        report = await node.until(holds(ONE, TWO))

    assert all(one.used for one in report.held)
    tree = node.tree(ONE)
    assert tree is not None
    assert files_in(tree) == dict(ONE.files)
    assert {tuple(sorted(asked)) for asked in node.shelf.asked} == {("cluster", "ns/team")}


async def test_model_of_a_foreign_namespace_does_not_come(node: Node) -> None:
    node.shelf.add(ONE, "ns/others")
    node.place("a", ONE)
    async with node.runs():
        report = await node.until(lambda found: bool(found.warming and found.warming[0].trouble))

    assert report.held == ()
    assert "not there" in report.warming[0].trouble


async def test_shared_files_are_fetched_once_and_stay_as_long_as_a_model_has_them(node: Node) -> None:
    node.shelf.add(ONE)
    node.shelf.add(TWO)
    async with node.runs():
        await node.want(Warm(str(ONE.digest), "ns/team", 1))
        await node.until(holds(ONE))
        await node.want(Warm(str(ONE.digest), "ns/team", 1), Warm(str(TWO.digest), "ns/team", 1))
        await node.until(holds(ONE, TWO))
    shared = Digest.of(ONE.files["same.bin"])
    assert len([one for one, *_ in node.shelf.blobs.reads if one == shared]) == 1
    kept = node.cache.kept()
    device = kept[ONE.digest].device
    assert node.cache.remove(kept[ONE.digest], lambda: False)

    left = {path.name for path in blobs_of(device).iterdir()}
    assert left == {Digest.of(data).hex for data in TWO.files.values()}
    tree = node.tree(TWO)
    assert tree is not None
    assert files_in(tree) == dict(TWO.files)


async def test_o69_room_is_made_by_what_no_pod_uses(node: Node) -> None:
    node.shelf.add(ONE)
    node.shelf.add(TWO)
    node.place("a", TWO)
    size = sum(map(len, ONE.files.values()))
    async with node.runs():
        await node.want(Warm(str(ONE.digest), "ns/team", size), cache_bytes=size + 1)
        await node.until(lambda found: holds(TWO)(found) and bool(found.warming))
        report = await node.agent.report()
        assert (report.warming[0].digest, report.warming[0].no_room) == (str(ONE.digest), True)
        node.records.drop("a")
        node.place("b", ONE)
        await node.until(holds(ONE))

    assert node.tree(TWO) is None


async def test_fetching_ends_when_nobody_wants_it(node: Node) -> None:
    node.shelf.add(ONE)
    node.shelf.held.clear()
    async with node.runs():
        await node.want(Warm(str(ONE.digest), "ns/team", 1))
        await node.until(lambda found: bool(found.warming) and node.shelf.asked != [])
        await node.want()
        await node.until(lambda found: not found.warming)
        await asyncio.wait_for(asyncio.to_thread(node.shelf.ended.wait, SECONDS), SECONDS)
    assert node.shelf.ended.is_set()
    assert node.tree(ONE) is None


async def test_second_agent_waits_for_the_first(node: Node) -> None:
    async with node.runs():
        await node.until(lambda found: found.trouble == "")
        other = Agent("n", node.root, node.shelf, node.cache)
        task = asyncio.create_task(other.run())
        await eventually(lambda: says(other, "another agent of this node runs"))
    await eventually(lambda: says(other, ""))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_o70_half_file_of_a_power_cut_and_flipped_bit_are_fetched_again(node: Node) -> None:
    node.shelf.add(ONE)
    node.place("a", ONE)
    async with node.runs():
        await node.until(holds(ONE))
    (tree,) = (path for path in [node.tree(ONE)] if path)
    weights = tree / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(ONE.files["model.safetensors"][:100])
    half = Node(node.root)
    half.shelf.add(ONE)
    async with half.runs():
        await half.until(holds(ONE))
    (tree,) = (path for path in [node.tree(ONE)] if path)
    assert files_in(tree) == dict(ONE.files)

    flipped = bytearray(ONE.files["model.safetensors"])
    flipped[7] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(flipped)
    audited = Node(node.root)
    audited.shelf.add(ONE)
    async with audited.runs():
        await eventually(lambda: whole(audited, 0))


@pytest.mark.parametrize("fault", ["removed", "truncated"])
async def test_o70_what_is_gone_from_a_device_comes_again(node: Node, fault: str) -> None:
    node.shelf.add(ONE)
    node.place("a", ONE)
    async with node.runs():
        await node.until(holds(ONE))
        (tree,) = (path for path in [node.tree(ONE)] if path)
        before, asked = tree.stat().st_ino, len(node.shelf.asked)
        if fault == "removed":
            tree.rename(tree.with_name("elsewhere"))
        else:
            (tree / "model.safetensors").chmod(0o644)
            with (tree / "model.safetensors").open("r+b") as file:
                file.truncate(10)
        await eventually(lambda: whole(node, asked))
    (tree,) = (path for path in [node.tree(ONE)] if path)
    assert tree.stat().st_ino != before


async def test_tree_that_a_pod_has_mounted_keeps_its_files_when_it_is_spoilt(node: Node) -> None:
    node.shelf.add(ONE)
    node.place("a", ONE)
    async with node.runs():
        await node.until(holds(ONE))
    (tree,) = (path for path in [node.tree(ONE)] if path)
    seen = tree.stat().st_ino
    node.cache.spoil(tree.parent.parent, [Digest.of(ONE.files["model.safetensors"])])
    node.cache.tidy({ONE.digest}, ())

    (aside,) = tree.parent.glob(".gone-*")
    assert aside.stat().st_ino == seen
    assert files_in(aside) == dict(ONE.files)
    node.cache.tidy((), ())
    assert list(tree.parent.iterdir()) == []
    assert list(blobs_of(tree.parent.parent).iterdir()) == []


async def test_node_without_a_device_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path, devices=())
    (tmp_path / "trouble").mkdir()
    (tmp_path / "trouble" / "sdb").write_text("carries another file system")
    async with node.runs():
        report = await node.until(lambda found: "no device" in found.trouble)

    assert [(one.id, one.trouble) for one in report.devices] == [("sdb", "carries another file system")]
    assert "delivery.hostFolder" in report.trouble


async def test_agent_works_on_when_devices_could_not_be_read_for_a_while(tmp_path: Path) -> None:
    """Nobody starts it anew: the actor that it runs in lives on."""
    node = Node(tmp_path, devices=())
    (tmp_path / "devices").symlink_to(tmp_path / "devices")
    async with node.runs():
        await node.until(lambda found: "symbolic links" in found.trouble)
        (tmp_path / "devices").unlink()
        (tmp_path / "devices" / "one").mkdir(parents=True)
        (tmp_path / "devices" / "one" / MARK).touch()
        report = await node.until(lambda found: not found.trouble)

    assert [one.id for one in report.devices] == ["one"]


async def test_o71_removal_stops_when_a_pod_comes_in_between(node: Node) -> None:
    node.shelf.add(ONE)
    device = node.root / "devices" / "one"
    node.shelf.fetch(ONE.digest, ["ns/team"], device, Progress())
    answers = iter((False, True))
    kept = node.cache.kept()[ONE.digest]

    assert not node.cache.remove(kept, lambda: next(answers))
    assert node.tree(ONE) is not None
