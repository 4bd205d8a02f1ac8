"""How the coordinator is had in a Ray cluster: what is done about each state of its submission."""

import dataclasses

import pytest

from aimodels_core.errors import UsageError
from aimodels_operator import bootstrap
from aimodels_operator.bootstrap import ID_PREFIX, Job, Move, Past, Seen, Start, decide, words_of
from aimodels_operator.dataplane import checked_url
from aimodels_operator.settings import from_env

START = Start.of(("--store", "/srv/my store"), "1.0")
OLD = Start.of(("--store", "/srv/old"), "1.0")
NOW = 1000.0
NOTHING_BEFORE = Past()
BEGINS = "is being started in Ray"
SLOW = "its start took longer than 300 s"
ENTRY_FAILED = (
    "Job entrypoint command failed with exit code 75, last available logs (truncated to 20,000 chars):\n"
    "Running entrypoint for job x: python3 -m aimodels_jobs.host --store s3://b\n"
    "token=hf_abc in some line of somebody\n"
    "coordinator: s3: no answer from https://key:secret@s3.example/bucket?X-Amz-Signature=abc\n"
)


def seen(*jobs: Job, silent: float | None = None, past: Past = NOTHING_BEFORE) -> Seen:
    return Seen(START, jobs, silent, NOW, past)


def mine(status: str, message: str = "") -> Job:
    return Job(START.id, status, message)


def since(status: str, seconds: float, **more: object) -> Past:
    return dataclasses.replace(Past(status, NOW - seconds), **more)  # type: ignore[arg-type] # fields by name


@pytest.mark.parametrize(
    ("given", "move", "target", "trouble"),
    [
        # Nothing there: a new cluster, a lost head, new settings.
        (seen(), Move.SUBMIT, START.id, BEGINS),
        (seen(Job("somebody-else", "RUNNING")), Move.SUBMIT, START.id, BEGINS),
        # It began: it has its time, and is stopped after that.
        (seen(mine("PENDING")), Move.NOTHING, START.id, BEGINS),
        (seen(mine("RUNNING"), past=since("RUNNING", 299)), Move.NOTHING, START.id, BEGINS),
        (seen(mine("PENDING"), past=since("RUNNING", 301)), Move.STOP, START.id, SLOW),
        (seen(mine("STOPPED", "x"), past=since("STOPPED", 1, trouble=SLOW)), Move.DELETE, START.id, SLOW),
        # It started well: nothing is done while the coordinator answers, or is silent for a moment.
        (seen(mine("SUCCEEDED"), past=since("SUCCEEDED", 9999)), Move.NOTHING, START.id, ""),
        (seen(mine("SUCCEEDED"), silent=14, past=since("SUCCEEDED", 9999)), Move.NOTHING, START.id, ""),
        (seen(mine("SUCCEEDED"), silent=16, past=since("SUCCEEDED", 9999)), Move.DELETE, START.id, ""),
        # What was silent before it started does not count.
        (seen(mine("SUCCEEDED"), silent=600, past=since("RUNNING", 5)), Move.NOTHING, START.id, ""),
        # It ended badly.
        (seen(mine("STOPPED")), Move.DELETE, START.id, "its start failed: stopped"),
        (seen(mine("FAILED", "Job supervisor actor died: x")), Move.DELETE, START.id, "its start failed: Job "),
        # Other settings: theirs goes first, whatever the coordinator does.
        (seen(Job(OLD.id, "SUCCEEDED")), Move.DELETE, OLD.id, "is replaced by one with other settings"),
        (seen(mine("RUNNING"), Job(OLD.id, "RUNNING")), Move.STOP, OLD.id, "is replaced by one with other settings"),
        (
            seen(Job(OLD.id, "FAILED"), Job(ID_PREFIX + "f" * 12, "PENDING")),
            Move.STOP,
            ID_PREFIX + "f" * 12,
            "is replaced by one with other settings",
        ),
    ],
)
def test_what_is_done(given: Seen, move: Move, target: str, trouble: str) -> None:
    step = decide(given)

    assert (step.move, step.id) == (move, target)
    assert step.trouble.startswith(trouble)
    assert bool(step.trouble) == bool(trouble)


@dataclasses.dataclass
class World:
    """Ray as far as decisions are about it, and a clock: every look takes a second."""

    outcome: str = "SUCCEEDED"
    jobs: dict[str, Job] = dataclasses.field(default_factory=dict)
    silent: float | None = None
    now: float = NOW
    past: Past = NOTHING_BEFORE
    submitted_at: list[float] = dataclasses.field(default_factory=list)

    def look(self, start: Start = START) -> bootstrap.Step:
        step = decide(Seen(start, tuple(self.jobs.values()), self.silent, self.now, self.past))
        for job in self.jobs.values():
            if job.status == "RUNNING":
                self.jobs[job.id] = dataclasses.replace(job, status=self.outcome)
        match step.move:
            case Move.SUBMIT:
                assert step.id not in self.jobs, "Ray refuses a second one of the same id"
                self.jobs[step.id] = Job(step.id, "RUNNING")
                self.submitted_at.append(self.now)
            case Move.STOP:
                self.jobs[step.id] = Job(step.id, "STOPPED")
            case Move.DELETE:
                assert self.jobs[step.id].finished, "Ray refuses to delete one that runs"
                del self.jobs[step.id]
            case Move.NOTHING:
                pass
        self.past = step.past
        self.now += 1.0
        if self.silent is not None:
            self.silent += 1.0
        return step

    def pauses(self) -> list[float]:
        return [after - before for before, after in zip(self.submitted_at, self.submitted_at[1:], strict=False)]


def test_one_submission_is_made_and_left_alone() -> None:
    world = World()
    moves = [world.look().move for _ in range(100)]

    assert moves == [Move.SUBMIT] + [Move.NOTHING] * 99


def test_other_settings_replace_it_and_coming_back_replaces_it_again() -> None:
    world = World()
    for start in (OLD, START, OLD):
        for _ in range(6):
            world.look(start)
        assert set(world.jobs) == {start.id}

    assert len(world.submitted_at) == 3


def test_a_start_that_always_fails_is_tried_for_ever_with_a_growing_pause() -> None:
    world = World(outcome="FAILED", silent=0.0)
    troubles = {world.look().trouble for _ in range(400)}

    assert world.pauses()[:4] == sorted(world.pauses()[:4])
    assert 2 <= world.pauses()[0] <= 5
    assert 60 <= max(world.pauses()) <= 65
    assert troubles == {BEGINS, "its start failed: failed"}, "one message: it does not change with every try"


def test_failures_are_forgotten_when_the_coordinator_answers() -> None:
    world = World(outcome="FAILED", silent=0.0)
    for _ in range(100):
        world.look()
    world.outcome, world.silent = "SUCCEEDED", None
    for _ in range(70):
        world.look()
    assert world.past.failures == 0
    assert world.look().trouble == ""

    world.jobs.clear()  # the head is lost
    assert world.look().move is Move.SUBMIT


def test_a_coordinator_that_never_answers_is_started_again_but_not_all_the_time() -> None:
    world = World(silent=0.0)
    for _ in range(600):
        world.look()

    assert world.pauses()[0] <= 25
    assert all(pause > bootstrap.SILENT_SECONDS for pause in world.pauses())
    assert 60 <= max(world.pauses()) <= 80


def test_what_is_told_is_the_id_and_paths_are_quoted() -> None:
    more = Start.of(("--store", "/srv/my store", "--log-level", "Debug"), "1.0")
    newer = Start.of(("--store", "/srv/my store"), "1.1")

    assert len({START.id, OLD.id, more.id, newer.id}) == 4
    assert Start.of(("--store", "/srv/my store"), "1.0") == START
    assert START.id.removeprefix(ID_PREFIX).isalnum()
    assert len(START.id) == len(ID_PREFIX) + 12
    assert START.entrypoint == "python3 -m aimodels_jobs.host --store '/srv/my store'"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (ENTRY_FAILED, "s3: no answer from https://s3.example/bucket?…"),
        (ENTRY_FAILED.partition("coordinator: ")[0], "Job entrypoint command failed with exit code 75"),
        ("Job supervisor actor died: The actor is dead", "Job supervisor actor died: The actor is dead"),
        ("", "failed"),
        ("coordinator: a\ncoordinator: \x1b[31mb", "?[31mb"),
    ],
)
def test_words_of_a_failure_are_ours_or_rays_and_never_output(message: str, words: str) -> None:
    assert words_of(mine("FAILED", message)) == words


def test_words_of_a_failure_are_short() -> None:
    assert len(words_of(mine("FAILED", "coordinator: " + "x" * 20_000))) <= 300


ENV = {"AI_MODELS_COORDINATOR_URL": "https://c:1", "AI_MODELS_IDENTITY": "pod-0"}


def test_settings_of_ray() -> None:
    ray = {"AI_MODELS_RAY_URL": "http://ray:8265", "AI_MODELS_COORDINATOR_COMMAND": '["--store", "/a b"]'}

    assert from_env(ENV).ray_url == ""
    assert from_env(ENV | ray).coordinator_command == ("--store", "/a b")
    assert checked_url("http://ray:8265/") == "http://ray:8265"


@pytest.mark.parametrize("text", ["--store x", '{"a": 1}', "[1]", '"x"', ""])
def test_a_command_that_is_no_list_is_refused(text: str) -> None:
    env = ENV | {"AI_MODELS_RAY_URL": "http://ray:8265", "AI_MODELS_COORDINATOR_COMMAND": text}
    with pytest.raises(UsageError, match="AI_MODELS_COORDINATOR_COMMAND"):
        from_env(env)


@pytest.mark.parametrize("url", ["ray:8265", "ray://ray:10001", "http://u:p@ray:8265", "http://ray:8265/x", "http://"])
def test_a_url_that_is_not_of_a_head_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="dashboard"):
        checked_url(url)
