"""One signal asks to stop; whatever happened, the process then has its own handlers again."""

import signal

import pytest

from aimodels_jobs.cli import stopping


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_asks_and_the_second_has_its_usual_effect(number: signal.Signals, code: int) -> None:
    came: list[int] = []
    before = signal.signal(number, lambda got, _: came.append(got))
    try:
        with stopping.on_signals() as stop:
            assert not stop.asked()
            signal.raise_signal(number)
            assert (stop.asked(), stop.exit_code, came) == (True, code, [])
            signal.raise_signal(number)
            assert came == [number]
    finally:
        signal.signal(number, before)


def test_handlers_come_back_when_nothing_happened() -> None:
    before = [signal.getsignal(number) for number in stopping.EXITS]

    with stopping.on_signals():
        pass

    assert [signal.getsignal(number) for number in stopping.EXITS] == before
