"""The transport against servers that are right, and against every wrong one."""

import gzip
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aimodels_core.errors import AiModelsError, Cancelled, RateLimited, SourceUnavailable, UsageError
from aimodels_core.transport import Answer, HostRules, Policy, Transport, connect
from tests.support import servers
from tests.support.certificates import certificates
from tests.support.scripted import Call, Reply, ranged, serve

LOCAL = HostRules(trusted=frozenset({"127.0.0.1"}))
QUICK = Policy(connect_seconds=2, read_seconds=2)
AUTH = {"Authorization": "Bearer s3cr3t", "Cookie": "a=s3cr3t"}


class Time:
    """A clock that only moves by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


def transport(rules: HostRules = LOCAL, policy: Policy = QUICK, time: Time | None = None) -> Transport:
    time = time or Time()
    return Transport(rules, policy=policy, clock=lambda: time.now, sleep=time.sleep, jitter=lambda: 0.0)


def code_of(call: Callable[[], Answer]) -> str:
    with pytest.raises(SourceUnavailable) as caught:
        call()
    assert "s3cr3t" not in str(caught.value)
    return caught.value.code


def test_answers_keep_their_connection_and_bodies_their_bytes() -> None:
    with serve(lambda call: Reply(body=call.path.encode(), headers=[("X-A", "1"), ("x-a", "2")])) as server:
        client = transport()
        answers = [client.call("GET", f"{server.url}/{i}?q=%20", max_bytes=100) for i in range(5)]

        assert [answer.body for answer in answers] == [f"/{i}?q=%20".encode() for i in range(5)]
        assert answers[0].headers["x-a"] == "1, 2"
        assert len({call.client for call in server.calls}) == 1


def test_a_kept_connection_that_died_is_replaced_without_a_pause() -> None:
    time = Time()
    with serve(lambda call: Reply(body=call.client[1].to_bytes(4, "big"), close=True)) as server:
        client = transport(time=time)
        answers = [client.call("GET", server.url, max_bytes=100).body for _ in range(3)]

        assert len(set(answers)) == 3
        assert time.slept == []


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_longer_than_allowed_is_refused_at_once(*, chunked: bool) -> None:
    with serve(lambda _: Reply(body=b"x" * 5001, chunked=chunked)) as server:
        client = transport()

        assert code_of(lambda: client.call("GET", server.url, max_bytes=5000)) == "TooLong"
        assert len(client.call("GET", server.url, max_bytes=5001).body) == 5001
        assert len(server.calls) == 2


def test_a_body_without_any_length_ends_with_the_connection() -> None:
    with serve(lambda _: Reply(body=b"abc", length=-1, close=True)) as server:
        assert transport().call("GET", server.url, max_bytes=3).body == b"abc"
        assert code_of(lambda: transport().call("GET", server.url, max_bytes=2)) == "TooLong"


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 429])
def test_what_may_pass_is_tried_again_with_growing_pauses(status: int) -> None:
    time = Time()
    with serve(lambda _: Reply(200 if len(server.calls) > 3 else status)) as server:
        answer = transport(time=time).call("GET", server.url, max_bytes=10)

        assert answer.status == 200
        assert len(server.calls) == 4
    assert time.slept == [0.25, 0.5, 1.0]


def test_o02_o61_a_cut_body_is_tried_again_and_then_reported() -> None:
    with serve(lambda _: Reply(body=b"x" * 430, length=1000, close=True)) as server:
        client = transport()

        assert code_of(lambda: client.call("GET", server.url, max_bytes=1000)) == "ShortBody"
        assert len(server.calls) == QUICK.attempts


def test_a_cut_chunked_body_is_noticed() -> None:
    with serve(lambda _: Reply(body=b"x" * 430, chunked=True, close=True)) as server:
        client = transport()
        assert code_of(lambda: client.call("GET", server.url, max_bytes=1000, retry=False)) == "ShortBody"


def test_resets_and_garbage_are_tried_again() -> None:
    replies = [
        Reply(raw=b""),
        Reply(body=b"x", length=9, reset=True),
        Reply(raw=b"SSH-2.0-x\r\n\r\n"),
        Reply(body=b"ok"),
    ]
    with serve(lambda _: replies[len(server.calls) - 1]) as server:
        assert transport().call("GET", server.url, max_bytes=10).body == b"ok"


def test_o06_retry_after_is_honoured_and_does_not_use_up_attempts() -> None:
    time = Time()
    refused = Reply(429, headers=[("Retry-After", "7")])
    with serve(lambda _: refused if len(server.calls) <= 8 else Reply(body=b"ok")) as server:
        policy = Policy(attempts=2, budget_seconds=60)
        assert transport(policy=policy, time=time).call("GET", server.url, max_bytes=10).body == b"ok"

    assert time.slept == [7.0] * 8


def test_o06_a_wait_beyond_the_budget_is_handed_to_the_caller() -> None:
    time = Time()
    with serve(lambda _: Reply(429, headers=[("Retry-After", "300")])) as server:
        with pytest.raises(RateLimited) as caught:
            transport(time=time).call("GET", server.url, max_bytes=10)

        assert caught.value.retry_after_seconds == 300
        assert time.slept == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 416])
def test_other_refusals_are_the_callers_business(status: int) -> None:
    with serve(lambda _: Reply(status, b"why" * 100, [("X-Error-Code", "E")])) as server:
        answer = transport().call("GET", server.url, max_bytes=10)

        assert (answer.status, answer.body, answer.headers["x-error-code"]) == (status, b"why" * 100, "E")
        assert len(server.calls) == 1


@pytest.mark.parametrize("status", [200, 204, 301])
def test_another_success_than_the_wanted_one_is_refused_at_once(status: int) -> None:
    with serve(lambda _: Reply(status, b"x" if status == 200 else b"")) as server:
        client = transport()
        assert code_of(lambda: client.call("GET", server.url, max_bytes=10, ok=(206,))) == "UnexpectedStatus"
        assert len(server.calls) == 1


def test_encoded_bodies_are_refused() -> None:
    with serve(lambda _: Reply(body=gzip.compress(b"x" * 99), headers=[("Content-Encoding", "gzip")])) as server:
        assert code_of(lambda: transport().call("GET", server.url, max_bytes=1000)) == "Encoded"
        assert server.calls[0].headers["accept-encoding"] == "identity"


def test_o05_credentials_stay_behind_when_the_origin_changes() -> None:
    with serve(lambda call: ranged(call, b"0123456789")) as cdn:
        location = [("Location", f"{cdn.url}/x?X-Amz-Signature=s")]
        with serve(lambda call: Reply(302, headers=location) if call.path == "/a" else Reply()) as hub:
            headers = {**AUTH, "Range": "bytes=2-4", "X-Other": "kept"}
            answer = transport().call("GET", f"{hub.url}/a", headers=headers, max_bytes=10, ok=(206,), follow=True)

            assert answer.body == b"234"
            assert "authorization" in hub.calls[0].headers
        assert cdn.calls[0].headers["range"] == "bytes=2-4"
        assert cdn.calls[0].headers["x-other"] == "kept"
        assert not {"authorization", "cookie"} & cdn.calls[0].headers.keys()


def test_o07_a_relative_redirect_on_the_same_host_keeps_credentials() -> None:
    def answer(call: Call) -> Reply:
        return Reply(307, headers=[("Location", "/new/näme x")]) if call.path == "/old" else Reply(body=b"ok")

    with serve(answer) as server:
        got = transport().call("GET", f"{server.url}/old", headers=AUTH, max_bytes=10, follow=True)

        assert got.url == f"{server.url}/new/n%C3%A3%C2%A4me%20x" or got.url == f"{server.url}/new/n%C3%A4me%20x"
        assert server.calls[1].headers["authorization"] == "Bearer s3cr3t"


def test_redirects_are_not_followed_unless_asked() -> None:
    with serve(lambda _: Reply(302, b"body", [("Location", "/b")])) as server:
        answer = transport().call("GET", f"{server.url}/a", max_bytes=10, ok=(302,))

        assert (answer.status, answer.headers["location"], answer.body) == (302, "/b", b"body")


def test_redirect_loops_end() -> None:
    with serve(lambda call: Reply(302, headers=[("Location", call.path + "a")])) as server:
        client = transport()
        assert code_of(lambda: client.call("GET", f"{server.url}/", max_bytes=10, follow=True)) == "RedirectLoop"
        assert len(server.calls) == QUICK.max_redirects + 1


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "https://example.com/?sig=s3cr3t",
        "file:///etc/passwd",
    ],
)
def test_redirects_to_other_places_are_refused(target: str) -> None:
    with serve(lambda _: Reply(302, headers=[("Location", target)])) as server:
        client = transport()
        assert code_of(lambda: client.call("GET", f"{server.url}/", max_bytes=10, follow=True)) == "ForeignRedirect"
        assert len(server.calls) == 1


def test_a_redirect_to_a_private_address_under_a_listed_suffix_is_refused_when_dialled() -> None:
    rules = HostRules(trusted=frozenset({"127.0.0.1"}), suffixes=(".localhost",))
    with serve(lambda _: Reply(302, headers=[("Location", "https://[::ffff:10.0.0.1]/")])) as server:
        client = transport(rules)
        assert code_of(lambda: client.call("GET", f"{server.url}/", max_bytes=10, follow=True)) == "ForeignRedirect"

    client = transport(HostRules(suffixes=(".localhost",)))
    assert code_of(lambda: client.call("GET", "https://localhost:1/", max_bytes=10)) == "AddressRefused"


def test_private_networks_can_be_allowed() -> None:
    with serve(lambda _: Reply(body=b"ok")) as server:
        connection = connect(
            "127.0.0.1",
            server.port,
            tls=False,
            ca_file="",
            trusted=False,
            timeout_seconds=5,
            private_cidrs=("127.0.0.0/8",),
        )
        connection.request("GET", "/")

        assert connection.getresponse().read() == b"ok"
        connection.close()


def test_silence_and_trickles_end_in_time() -> None:
    policy = Policy(connect_seconds=1, read_seconds=0.3, attempts=1, slowest_bytes_per_second=1000)
    never = threading.Event()
    with serve(
        lambda call: Reply(hold=never) if call.path == "/silent" else Reply(body=b"x" * 400, drip_seconds=0.01)
    ) as server:
        client = Transport(LOCAL, policy=policy)

        assert code_of(lambda: client.call("GET", f"{server.url}/silent", max_bytes=400)) == "TimedOut"
        assert code_of(lambda: client.call("GET", f"{server.url}/trickle", max_bytes=400)) == "TimedOut"
        never.set()


def test_an_aborted_transport_ends_its_requests_within_a_second() -> None:
    never = threading.Event()
    with serve(
        lambda call: Reply(503, headers=[("Retry-After", "50")]) if call.path == "/w" else Reply(hold=never)
    ) as server:
        client = Transport(LOCAL)
        ends: list[object] = []

        def run(path: str) -> None:
            try:
                ends.append(client.call("GET", server.url + path, max_bytes=9))
            except AiModelsError as error:
                ends.append(error)

        threads = [threading.Thread(target=run, args=(path,)) for path in ("/silent", "/w", "/silent")]
        for thread in threads:
            thread.start()
        servers.wait_for(lambda: len(server.calls) == 3, "three requests")
        client.abort()
        for thread in threads:
            thread.join(1)

        assert [type(end) for end in ends] == [Cancelled] * 3
        never.set()
    with pytest.raises(Cancelled):
        client.call("GET", "http://127.0.0.1:1/", max_bytes=9)


def test_an_abort_ends_a_request_on_a_kept_connection_too() -> None:
    never = threading.Event()
    with serve(lambda call: Reply() if call.path == "/quick" else Reply(hold=never)) as server:
        client = Transport(LOCAL)
        client.call("GET", f"{server.url}/quick", max_bytes=9)
        timer = threading.Timer(0.2, client.abort)
        timer.start()
        with pytest.raises(Cancelled):
            client.call("GET", f"{server.url}/silent", max_bytes=9)
        timer.join()
        never.set()

        assert server.paths() == ["/quick", "/silent"]


def test_nobody_listening_is_a_clear_error() -> None:
    client = transport()
    port = servers.free_port()
    with pytest.raises(SourceUnavailable, match="no connection: Connection refused") as caught:
        client.call("GET", f"http://127.0.0.1:{port}/", max_bytes=10)

    assert caught.value.code == "ConnectFailed"


def test_a_body_goes_straight_into_a_given_buffer() -> None:
    data = bytes(range(256)) * 40
    with serve(lambda call: ranged(call, data)) as server:
        buffer = memoryview(bytearray(1000))
        headers = {"Range": "bytes=5-1004"}
        answer = transport().call("GET", server.url, headers=headers, max_bytes=1000, ok=(206,), into=buffer)

        assert (answer.body, bytes(buffer)) == (b"", data[5:1005])


@pytest.mark.parametrize(("reply", "code"), [(Reply(body=b"x" * 11), "TooLong"), (Reply(body=b"x" * 9), "ShortBody")])
def test_a_buffer_is_filled_exactly_or_not_at_all(reply: Reply, code: str) -> None:
    with serve(lambda _: reply) as server:
        buffer = memoryview(bytearray(10))
        client = transport()
        assert code_of(lambda: client.call("GET", server.url, max_bytes=10, into=buffer, retry=False)) == code
        assert bytes(buffer) == bytes(10)


@pytest.mark.parametrize("value", ["s3cr3t\r\nX: y", "s3cr3t\x00", "s3cr3té"])
def test_a_header_that_cannot_be_sent_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        transport().call("GET", "http://127.0.0.1:1/", headers={"Authorization": value}, max_bytes=10)

    assert "s3cr3t" not in str(caught.value)


def test_plain_http_is_only_for_hosts_set_explicitly() -> None:
    with pytest.raises(UsageError, match="want an escaped https URL"):
        transport(HostRules()).call("GET", "http://huggingface.co/", max_bytes=10)


def test_o63_tls_is_verified_against_the_private_authority(tmp_path: Path) -> None:
    made = certificates(tmp_path)
    with serve(lambda _: Reply(body=b"ok"), context=made.server_context()) as server:
        ours = Transport(LOCAL, policy=QUICK, ca_file=str(made.ca))
        assert ours.call("GET", f"{server.url}/", max_bytes=10).body == b"ok"
        assert ours.call("GET", f"https://localhost:{server.port}/", max_bytes=10).body == b"ok"

        theirs = transport()
        assert code_of(lambda: theirs.call("GET", f"{server.url}/", max_bytes=10)) == "TlsFailed"


def test_o63_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    made = certificates(tmp_path, "127.0.0.1")
    with serve(lambda _: Reply(), context=made.server_context()) as server:
        client = Transport(LOCAL, policy=QUICK, ca_file=str(made.ca))

        assert code_of(lambda: client.call("GET", f"https://localhost:{server.port}/", max_bytes=10)) == "TlsFailed"
        assert client.call("GET", f"{server.url}/", max_bytes=10).status == 200


def test_posts_send_their_body_once() -> None:
    with serve(lambda call: Reply(503) if len(server.calls) == 1 else Reply(body=call.body)) as server:
        client = transport()
        assert code_of(lambda: client.call("POST", server.url, body=b"abc", max_bytes=10, retry=False)) == "ServerError"
        assert client.call("POST", server.url, body=b"abc", max_bytes=10).body == b"abc"


def test_many_threads_share_one_transport() -> None:
    def answer(call: Call) -> Reply:
        return Reply(body=call.path.encode())

    with serve(answer) as server:
        client = Transport(LOCAL, policy=QUICK)
        wrong: list[str] = []

        def run(name: int) -> None:
            paths = [f"/{name}/{i}" for i in range(30)]
            wrong.extend(p for p in paths if client.call("GET", server.url + p, max_bytes=99).body != p.encode())

        threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()

        assert wrong == []
        assert len({call.client for call in server.calls}) <= 8


def test_real_nginx_ranges_arrive_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "model.bin").write_bytes(data)
    with servers.nginx(tmp_path) as server:
        client = Transport(LOCAL, policy=QUICK)
        view = memoryview(bytearray(len(data) - 7))
        headers = {"Range": f"bytes=7-{len(data) - 1}"}
        client.call("GET", f"{server.url}/model.bin", headers=headers, max_bytes=len(view), ok=(206,), into=view)

        assert bytes(view) == data[7:]
        assert isinstance(server, servers.Server)
