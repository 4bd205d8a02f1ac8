"""`ai-models` as a process: exit codes, what goes to stdout and stderr, signals, and that secrets stay secret."""

import json
import signal
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from aimodels_core import names
from aimodels_jobs.headers import FIRST_WINDOW_BYTES
from tests.support.auditing import assert_no_leftovers, audit, checkpoints, content, uploads
from tests.support.commandline import CLI, Cli, ended, running
from tests.support.hub.faults import Fault
from tests.support.hub.repository import Access, Repository
from tests.support.hub.routes import On
from tests.support.hub.server import Hub
from tests.support.processes import wait_for
from tests.support.publishing import MIB, PART, Place, good_model
from tests.support.weights import safetensors_of_size, tiny_pytorch

REPOSITORY = "org/name"
WEIGHTS = "model.safetensors"
FIELDS = {
    *("name", "digest", "sizeBytes", "bytesTotal", "bytesTransferred", "bytesReused", "seconds", "workers"),
    *("engine", "hashBackend"),
}


@pytest.fixture
def cli(folder: Place, hub: Hub) -> Cli:
    return Cli(folder, hub.url)


def test_a_model_goes_in_is_listed_verified_pulled_removed_and_collected(
    place: Place, hub: Hub, tmp_path: Path
) -> None:
    repository, cli = hub.add(good_model(REPOSITORY)), Cli(place, hub.url)
    files = {path: file.sha256_hex for path, file in repository.head.files.items()}
    first, again = (
        cli("publish", REPOSITORY, "--name", "m", "--json"),
        cli("publish", REPOSITORY, "--name", "m", "--json"),
    )

    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert set(first.json) == FIELDS
    assert first.json["bytesTransferred"] - FIRST_WINDOW_BYTES == first.json["bytesTotal"] == again.json["bytesReused"]
    assert (again.json["bytesTransferred"], again.json["engine"]) == (0, "none")
    assert first.json["digest"] == again.json["digest"]
    assert [m["name"] for m in cli("ls", "--json").json["models"]] == ["m"]
    assert cli("verify", "m", "--json").json["same"] is True
    assert content(place.store, names.LOCAL, "m") == files
    pulled = cli("pull", "m", "--to", str(tmp_path / "out"))
    assert pulled.code == 0, pulled.err
    assert {path: (tmp_path / "out" / path).stat().st_size for path in files} == {
        path: file.size_bytes for path, file in repository.head.files.items()
    }
    assert cli("verify", "--dir", str(tmp_path / "out")).code == 0
    assert cli("rm", "m").code == 0
    assert cli("gc", "--json").json["blobs"] > 0
    assert list(place.store.blobs()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(("publish", "https://huggingface.co/datasets/org/name", "--name", "m"), "dataset", id="dataset"),
        pytest.param(("publish", "https://huggingface.co/spaces/org/name", "--name", "m"), "space", id="space"),
        pytest.param(("publish", "https://elsewhere.example/org/name", "--name", "m"), "host", id="other host"),
        pytest.param(("publish", "http://huggingface.co/org/name", "--name", "m"), "https", id="http"),
        pytest.param(
            ("publish", "https://me:secret@huggingface.co/org/name", "--name", "m"), "user name", id="userinfo"
        ),
        pytest.param(("publish", "https://huggingface.co:444/org/name", "--name", "m"), "port", id="port"),
        pytest.param(("publish", "https://huggingface.co/org/../name", "--name", "m"), "`..`", id="traversal"),
        pytest.param(("publish", "https://huggingface.co/org/%2e%2e", "--name", "m"), "`..`", id="encoded traversal"),
        pytest.param(("publish", "https://huggingface.co/", "--name", "m"), "names no model", id="no model"),
        pytest.param(("publish", "org/na me", "--name", "m"), "want", id="a space"),
        pytest.param(("plan", "a/b/c"), "want", id="plan of three names"),
    ],
)
def test_a_source_that_is_not_served_fails_for_good(words: tuple[str, ...], says: str, cli: Cli, folder: Place) -> None:
    done = cli(*words)

    assert done.code == 1, done.err
    assert says in done.err
    assert "secret" not in done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert audit(folder.store) == {}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="nothing"),
        pytest.param(("publish",), id="no source"),
        pytest.param(("publish", "org/name"), id="no name"),
        pytest.param(("publish", "org/name", "--name", ""), id="an empty name"),
        pytest.param(("publish", "org/name", "--name", "m", "--workers", "0"), id="no workers"),
        pytest.param(("publish", "org/name", "--name", "m", "--retry-seconds", "-1"), id="negative seconds"),
        pytest.param(("publish", "org/name", "--name", "m", "--endpoint", "ftp://hub"), id="endpoint"),
        pytest.param(("ls", "--store", "gs://bucket"), id="store"),
        pytest.param(("ls", "--store", "s3://"), id="no bucket"),
        pytest.param(("verify",), id="verify nothing"),
        pytest.param(("bake", "m"), id="no such command"),
    ],
)
def test_a_wrong_command_line_is_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run([CLI, *words], capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)

    assert done.returncode == 2, done.stderr
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_not_published_fails_for_good(cli: Cli, hub: Hub) -> None:
    hub.add(good_model(REPOSITORY, weights_bytes=1000))

    for words in (("pull", "m", "--to", "out"), ("verify", "m"), ("rm", "m")):
        assert cli(*words).code == 1
    assert cli("publish", REPOSITORY, "--name", "other").code == 0
    for words in (("pull", "m", "--to", "out"), ("verify", "m"), ("rm", "m")):
        done = cli(*words)
        assert (done.code, done.out) == (1, "")
        assert "m" in done.err


def test_verify_finds_a_flipped_bit_in_the_store_and_in_a_folder(
    cli: Cli, hub: Hub, folder: Place, tmp_path: Path
) -> None:
    repository = hub.add(good_model(REPOSITORY, weights_bytes=100_000))
    assert cli("publish", REPOSITORY, "--name", "m").code == 0
    assert cli("pull", "m", "--to", str(tmp_path / "out")).code == 0
    hexdigest = repository.head.files[WEIGHTS].sha256_hex
    blob = next(path for path in Path(folder.words[1]).rglob("data") if path.parent.name == hexdigest)
    for path in (blob, tmp_path / "out" / WEIGHTS):
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[77_777] ^= 1
        path.write_bytes(data)

    stored, pulled = cli("verify", "m", "--json"), cli("verify", "--dir", str(tmp_path / "out"))

    assert (stored.code, pulled.code) == (3, 3)
    assert [d["path"] for d in stored.json["differences"]] == [WEIGHTS]
    assert hexdigest in stored.json["differences"][0]["want"]
    assert WEIGHTS in pulled.out


def test_bytes_that_lie_twice_fail_for_good_with_both_digests(place: Place, hub: Hub) -> None:
    repository, cli = hub.add(good_model(REPOSITORY)), Cli(place, hub.url)
    hub.fault(Fault.FLIP_BIT, on=On.CDN, path=WEIGHTS, offset=PART + 1)
    done = cli("publish", REPOSITORY, "--name", "m", "--json")

    assert (done.code, done.out) == (1, "")
    assert f"want sha256:{repository.head.files[WEIGHTS].sha256_hex}" in done.err
    assert "got sha256:" in done.err
    assert audit(place.store) == {}
    assert uploads(place.store) == checkpoints(place.store) == []


def test_a_source_that_stays_away_is_temporary_after_the_budget(cli: Cli, hub: Hub, folder: Place) -> None:
    hub.add(good_model(REPOSITORY, weights_bytes=1000))
    rule = hub.fault(Fault.STATUS, on=On.RESOLVE, status=503, path=WEIGHTS)
    done = cli("publish", REPOSITORY, "--name", "m", "--retry-seconds", "2")

    assert (done.code, done.out) == (75, "")
    assert "503" in done.err
    hub.rules.remove(rule)
    assert cli("publish", REPOSITORY, "--name", "m").code == 0
    assert_no_leftovers(folder.store)


def test_a_gated_model_fails_and_says_where_to_accept(cli: Cli, hub: Hub) -> None:
    repository = hub.add(good_model(REPOSITORY, weights_bytes=1000))
    repository.access = Access.GATED
    done = cli("publish", REPOSITORY, "--name", "m")

    assert (done.code, done.out) == (1, "")
    assert f"{hub.url}/{REPOSITORY}" in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_cleanly_within_seconds_and_the_next_run_goes_on(
    number: signal.Signals, code: int, place: Place, hub: Hub
) -> None:
    repository, cli = hub.add(good_model(REPOSITORY, weights_bytes=6 * PART)), Cli(place, hub.url)
    hub.throttle(8 * MIB)
    with running(cli.begin("publish", REPOSITORY, "--name", "m", "--connections", "4")) as process:
        wait_for(lambda: bool(checkpoints(place.store)), "a checkpoint", seconds=40)
        process.send_signal(number)
        stopped = ended(process, seconds=10)
    hub.throttle(None)
    assert stopped.code == code
    assert stopped.out == ""
    assert "run the same command again" in stopped.err
    assert audit(place.store) == {}
    hub.log.clear()
    done = cli("publish", REPOSITORY, "--name", "m", "--json")

    assert done.code == 0, done.err
    assert hub.log.payload_bytes(WEIGHTS) <= 2 * PART + MIB
    assert content(place.store, names.LOCAL, "m")[WEIGHTS] == repository.head.files[WEIGHTS].sha256_hex
    assert_no_leftovers(place.store)


def test_the_token_is_shown_nowhere(place: Place, hub: Hub, tmp_path: Path) -> None:
    token = "hf_VerySecretTokenOfTests"
    hub.tokens[token] = "someone"
    repository = hub.add(good_model(REPOSITORY))
    repository.access, repository.granted = Access.GATED, frozenset({token})
    hub.fault(Fault.STATUS, on=On.INFO, status=503, times=1)
    hub.fault(Fault.STATUS, on=On.CDN, path=WEIGHTS, offset=PART, status=403, times=1)
    hub.fault(Fault.STATUS, on=On.CDN, path=WEIGHTS, offset=PART, status=500, times=1)
    cli = Cli(place, hub.url, {"HF_TOKEN": token})
    runs = [
        cli("plan", REPOSITORY, "-v"),
        cli("publish", REPOSITORY, "--name", "m", "-v", "--json"),
        cli("publish", f"{REPOSITORY}-not", "--name", "n", "-v"),
        cli("ls", "-v"),
        cli("doctor", "-v"),
        cli("verify", "m", "-v"),
    ]
    printed = "".join(run.out + run.err for run in runs)

    assert [run.code for run in runs] == [0, 0, 1, 0, 0, 0], printed
    assert token not in printed
    assert "Signature=" not in printed
    assert "X-Amz-Signature" not in printed
    assert "Bearer" not in printed
    objects = place.store.objects
    for info in objects.list(""):
        assert token.encode() not in (objects.get(info.key, max_bytes=64 * MIB) or b""), info.key
    assert all(not each.token for each in hub.log.select(on=On.CDN))


def test_the_plan_is_rows_json_lines_and_parquet_and_writes_nothing(
    cli: Cli, hub: Hub, folder: Place, tmp_path: Path
) -> None:
    hub.add(good_model(REPOSITORY))
    table, shown = tmp_path / "plan.parquet", cli("plan", REPOSITORY)
    lines = [json.loads(line) for line in cli("plan", REPOSITORY, "--json", "--out", str(table)).out.splitlines()]

    assert not Path(folder.words[1]).exists()
    summary, rows = lines[0], lines[1:]
    assert pq.read_table(table).to_pylist() == rows
    assert json.loads(pq.read_schema(table).metadata[b"plan"]) == summary
    weights = next(row for row in rows if row["path"] == WEIGHTS)
    assert (weights["sizeBytes"], weights["parts"], weights["way"]) == (2 * PART + 1, 3, "move")
    assert WEIGHTS in shown.out
    assert "hub requests" in shown.out
    hub.log.clear()
    assert cli("publish", REPOSITORY, "--name", "m").code == 0
    assert len(hub.log) - len(hub.log.select(on=On.CDN)) <= summary["hubRequests"]
    again = cli("plan", REPOSITORY, "--json").out.splitlines()
    assert json.loads(again[0])["bytesNew"] == 0


def test_torch_weights_are_published_with_a_warning_or_refused(cli: Cli, hub: Hub) -> None:
    hub.add(Repository(REPOSITORY, tiny_pytorch()))
    refused, done = (
        cli("publish", REPOSITORY, "--name", "m", "--refuse-pickle"),
        cli("publish", REPOSITORY, "--name", "m"),
    )

    assert refused.code == 1
    assert done.code == 0
    assert "PickleWeights" in done.err


def test_a_new_commit_moves_the_tag_and_gc_takes_what_only_the_old_one_had(place: Place, hub: Hub) -> None:
    repository, cli = hub.add(good_model(REPOSITORY)), Cli(place, hub.url)
    old = cli("publish", REPOSITORY, "--name", "m", "--json").json
    repository.update({"chat_template.jinja": b"{{ messages }}"})
    hub.log.clear()
    added = cli("publish", REPOSITORY, "--name", "m", "--json").json

    assert added["digest"] != old["digest"]
    assert hub.log.payload_bytes(WEIGHTS) == 0
    repository.update({WEIGHTS: safetensors_of_size(300_000, seed=5)})
    new = cli("publish", REPOSITORY, "--name", "m", "--json").json
    before = place.store
    assert len(set(audit(before).values())) == 1
    freed = cli("gc", "--json").json
    assert freed["sizeBytes"] > 2 * PART
    assert audit(place.store) == {f"local:{names.model_tag('m')}": new["digest"]}
    assert_no_leftovers(place.store)


def test_progress_goes_to_stderr_and_a_closed_stdout_is_no_crash(hub: Hub, folder: Place) -> None:
    hub.add(good_model(REPOSITORY, weights_bytes=1000))
    cli = Cli(folder, hub.url)
    process = cli.begin("publish", REPOSITORY, "--name", "m")
    assert process.stdout is not None
    process.stdout.close()
    with running(process):
        process.stdout = None
        done = ended(process)

    assert done.code == 141
    assert "m:" in done.err
    assert "Traceback" not in done.err
    assert len(audit(folder.store)) == 1
