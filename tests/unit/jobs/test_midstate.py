import hashlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aimodels_jobs import midstate


@pytest.fixture(params=["libcrypto", "hashlib"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "hashlib":
        monkeypatch.setattr(midstate, "_library", lambda: None)
    assert midstate.backend() == name
    return name


@given(data=st.binary(max_size=1000), cut=st.integers(0, 15))
def test_a_hash_resumed_at_any_boundary_equals_one_pass(data: bytes, cut: int) -> None:
    at = min(cut * 64, len(data) // 64 * 64)
    first = midstate.new()
    first.update(memoryview(data[:at]))
    second = midstate.resume(first.state())
    second.update(memoryview(bytearray(data[at:])))

    assert second.count == len(data)
    assert second.hexdigest() == hashlib.sha256(data).hexdigest()


def test_every_backend_hands_over_and_keeps_the_old_state_usable(backend: str) -> None:
    data = bytes(range(256)) * 4
    one = midstate.new()
    one.update(memoryview(data[:256]))
    state = one.state()
    one.update(memoryview(data[256:700]))
    two, three = midstate.resume(state), midstate.resume(state)
    two.update(memoryview(data[256:]))
    three.update(memoryview(data[256:700]))

    assert midstate.position(state) == 256
    assert two.hexdigest() == hashlib.sha256(data).hexdigest()
    assert three.hexdigest() == one.hexdigest() == hashlib.sha256(data[:700]).hexdigest()


def test_a_start_is_a_state_too(backend: str) -> None:
    state = midstate.new().state()
    again = midstate.resume(state)

    assert (len(state), again.count) == (40, 0)
    assert again.hexdigest() == hashlib.sha256(b"").hexdigest()


def test_the_state_is_the_documented_forty_bytes() -> None:
    sha = midstate.new()
    sha.update(memoryview(b"a" * 64))

    assert sha.state().hex() == "df5bb81ce81e0626fb45a8944fd40f31b25e6816d6d499c1ab90492900635e660000000000000040"
    assert midstate.new().state().hex().startswith("6a09e667bb67ae85")


def test_the_digest_may_be_read_in_the_middle(backend: str) -> None:
    sha = midstate.new()
    sha.update(memoryview(b"abc"))

    assert sha.hexdigest() == hashlib.sha256(b"abc").hexdigest()

    sha.update(memoryview(b"def"))

    assert sha.hexdigest() == hashlib.sha256(b"abcdef").hexdigest()


@pytest.mark.parametrize("size", [1, 63, 65])
def test_no_state_between_boundaries(backend: str, size: int) -> None:
    sha = midstate.new()
    sha.update(memoryview(bytes(size)))

    with pytest.raises(ValueError, match="want a multiple of 64"):
        sha.state()


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(b"", id="empty"),
        pytest.param(bytes(39), id="short"),
        pytest.param(bytes(112), id="libcrypto-context"),
        pytest.param(bytes(40), id="wrong-start"),
        pytest.param(bytes(32) + (65).to_bytes(8, "big"), id="off-boundary"),
        pytest.param(bytes(32) + (1 << 61).to_bytes(8, "big"), id="too-long"),
    ],
)
def test_a_malformed_state_is_refused(backend: str, state: bytes) -> None:
    with pytest.raises(ValueError, match="hash state"):
        midstate.resume(state)


def test_a_token_of_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sha = midstate.new()
    sha.update(memoryview(bytes(64)))
    state = sha.state()
    monkeypatch.setattr(midstate, "_library", lambda: None)

    with pytest.raises(ValueError, match="of this process"):
        midstate.resume(state)


def test_counts_above_four_gigabits_are_exact() -> None:
    count = (1 << 45) + 64
    sha = midstate.resume(bytes(range(32)) + count.to_bytes(8, "big"))
    sha.update(memoryview(bytearray(128)))

    assert sha.count == count + 128
    assert midstate.position(sha.state()) == count + 128


def test_the_interpreter_runs_on_while_libcrypto_hashes() -> None:
    buffer = memoryview(bytearray(64 << 20))
    sha = midstate.new()
    worker = threading.Thread(target=sha.update, args=(buffer,))
    turns = 0
    worker.start()
    while worker.is_alive():
        turns += 1
    worker.join()

    assert turns > 1000
