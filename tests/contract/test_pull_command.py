"""`ai-models pull --from` as a Job runs it: a registry that asks for tokens, the issuer as it is, a folder for all."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aimodels_core import dmcr, folders
from tests.support import servers
from tests.support.artifacts import Sample, files_in, sample, write_layout
from tests.support.commandline import CLI, Ended, ended
from tests.support.issuing import Issuing, issuing

pytestmark = pytest.mark.timeout(120)

MODEL = sample({"config.json": b"{}", "model.safetensors": random.Random(6).randbytes(300_000)})
NEXT = sample({"config.json": b"{}", "model.safetensors": random.Random(7).randbytes(200_000)})


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuing]:
    with issuing(tmp_path_factory.mktemp("issuing")) as made:
        yield made


@pytest.fixture(scope="module")
def registry(issuer: Issuing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("layout")
    for repository in ("cluster", "ns/team", "ns/other"):
        write_layout(root, repository, {"model": MODEL, "next": NEXT})
    with servers.registry(root, more=issuer.auth) as url:
        yield url


class Job:
    """Runs the command as the container of a pull Job does."""

    def __init__(self, registry: str, issuer: Issuing, folder: Path) -> None:
        self.registry = registry
        self.ca = issuer.certificates.ca
        self.claim = folder / "claim"
        self.claim.mkdir()
        self.token = folder / "token"
        self.token.write_text(issuer.accounts.add("team"))

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HF_", "RAY_"))}
        return subprocess.Popen(
            [CLI, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept,
        )

    def begin_pull(self, repository: str = "ns/team", model: Sample = MODEL) -> "subprocess.Popen[str]":
        words = ["--from", dmcr.address(self.registry, repository, model.digest), "--to", str(self.target(model))]
        return self.begin("pull", *words, "--token-file", str(self.token), "--ca-file", str(self.ca))

    def pull(self, repository: str = "ns/team", model: Sample = MODEL) -> Ended:
        return ended(self.begin_pull(repository, model))

    def target(self, model: Sample = MODEL) -> Path:
        return self.claim / "by-digest" / model.digest.hex

    def targets(self) -> set[str]:
        return {path.name for path in (self.claim / "by-digest").iterdir()}


@pytest.fixture
def job(registry: str, issuer: Issuing, tmp_path: Path) -> Iterator[Job]:
    made = Job(registry, issuer, tmp_path)
    yield made
    folders.remove_tree(made.claim)


@pytest.mark.parametrize("repository", ["ns/team", "cluster"])
def test_a_model_appears_whole_under_its_digest_and_again_costs_nothing(job: Job, repository: str) -> None:
    done, again = job.pull(repository), job.pull(repository)

    assert (done.code, files_in(job.target())) == (0, MODEL.files), done.err
    assert job.targets() == {MODEL.digest.hex}
    assert (again.code, "0 B read from the registry" in again.out) == (0, True)


def test_two_at_once_are_harmless_and_two_digests_lie_beside_each_other(job: Job) -> None:
    jobs = [job.begin_pull(), job.begin_pull(), job.begin_pull(model=NEXT)]

    assert [ended(one).code for one in jobs] == [0, 0, 0]
    assert files_in(job.target()) == MODEL.files
    assert files_in(job.target(NEXT)) == NEXT.files
    assert job.targets() == {MODEL.digest.hex, NEXT.digest.hex}


def test_what_is_another_namespaces_is_refused_and_leaves_nothing(job: Job) -> None:
    done = job.pull("ns/other")

    assert done.code == 1
    assert "access refused" in done.err
    assert job.token.read_text() not in done.out + done.err
    assert not job.target().parent.exists()


def test_a_folder_is_removed_and_the_other_stays(job: Job) -> None:
    assert (job.pull().code, job.pull(model=NEXT).code) == (0, 0)
    first = ended(job.begin("rm", "--dir", str(job.target())))
    again = ended(job.begin("rm", "--dir", str(job.target()), "--json"))

    assert (first.code, again.code, again.json["removed"]) == (0, 0, False)
    assert job.targets() == {NEXT.digest.hex}


def test_a_folder_with_other_files_is_not_removed(job: Job) -> None:
    mine = job.claim / "mine"
    mine.mkdir()
    (mine / "file").touch()
    done = ended(job.begin("rm", "--dir", str(mine)))

    assert (done.code, (mine / "file").exists()) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pull", "--to", "d"), "want NAME or --from"),
        (("pull", "m", "--from", "https://h/r@sha256:" + "a" * 64, "--to", "d"), "want either NAME or --from"),
        (("pull", "--from", "https://h/r:tag", "--to", "d"), "--from: want https://HOST"),
        (("pull", "--from", "http://far.example/r@sha256:" + "a" * 64, "--to", "d"), "want https://<host>"),
        (("rm",), "want either NAME or --dir"),
    ],
)
def test_wrong_words_are_told(job: Job, words: tuple[str, ...], said: str) -> None:
    done = ended(job.begin(*words))

    assert (done.code, said in done.err) == (2, True), done.err


def test_neither_ray_nor_a_store_is_imported() -> None:
    code = "import sys; from aimodels_jobs.cli import pulling; print({'ray', 'botocore', 'boto3'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)

    assert done.stdout.strip() == "set()"
