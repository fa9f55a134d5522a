"""Who may wait: the budget is kept, refusals say when to try again, and one key cannot take everything."""

from contextlib import ExitStack

import pytest

from onepass.errors import Overloaded, RequestError, TooLong
from onepass.server.engines.admission import MAX_BUDGETS, MAX_SCORES, Admission, Budget


def test_requests_beyond_the_budget_are_refused_until_one_leaves() -> None:
    admission = Admission(Budget(tokens=100, requests=2))
    with ExitStack() as stack:
        stack.enter_context(admission.request("a"))
        second = stack.enter_context(ExitStack())
        second.enter_context(admission.request("b"))
        with pytest.raises(Overloaded, match="at most 2") as caught, admission.request("c"):
            pass
        assert caught.value.retry_after is not None
        assert caught.value.retry_after >= 1
        second.close()
        with admission.request("c"):
            assert admission.requests == 2
    assert admission.requests == 0


def test_tokens_beyond_the_budget_are_refused() -> None:
    admission = Admission(Budget(tokens=100, requests=10))
    with admission.work("a", 60):
        with pytest.raises(Overloaded, match="60 are waiting"), admission.work("a", 50):
            pass
        with admission.work("a", 40):
            assert admission.tokens == 100
    assert admission.tokens == 0


def test_a_request_larger_than_the_budget_runs_alone() -> None:
    admission = Admission(Budget(tokens=100, requests=10))
    with admission.work("a", 1000), pytest.raises(Overloaded), admission.work("b", 1):
        pass
    with admission.work("b", 1), pytest.raises(Overloaded), admission.work("a", 1000):
        pass


def test_one_of_several_keys_holds_at_most_half() -> None:
    admission = Admission(Budget(tokens=100, requests=10), num_keys=2)
    with admission.work("greedy", 50):
        with pytest.raises(Overloaded, match="50 of them yours"), admission.work("greedy", 10):
            pass
        with admission.work("modest", 50):
            pass
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(admission.request("greedy"))
        with pytest.raises(Overloaded), admission.request("greedy"):
            pass
        stack.enter_context(admission.request("modest"))


def test_an_error_in_a_request_frees_its_place() -> None:
    admission = Admission(Budget(tokens=100, requests=1))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), admission.request("a"), admission.work("a", 90):
            _ = 1 / 0
    assert (admission.requests, admission.tokens) == (0, 0)


def test_the_time_to_try_again_follows_the_rate_of_service(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("onepass.server.engines.admission.time.monotonic", lambda: clock[0])
    admission = Admission(Budget(tokens=10_000, requests=10))
    serve(admission, clock, seconds=200, rate=500)
    with admission.work("a", 10_000), pytest.raises(Overloaded) as caught, admission.work("a", 5_000):
        pass
    assert caught.value.retry_after == pytest.approx(10, rel=0.2)  # 5,000 tokens at 500 a second


def serve(admission: Admission, clock: list[float], seconds: int, rate: int) -> None:
    """So many seconds of work, a request each, with pauses that do not count."""
    for _ in range(seconds):
        clock[0] += 7.0
        with admission.work("a", rate):
            clock[0] += 1.0


def test_what_waits_is_bounded_in_seconds_by_the_measured_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("onepass.server.engines.admission.time.monotonic", lambda: clock[0])
    budget = Budget(tokens=1 << 20, requests=100, seconds=60)
    new, admission = Admission(budget), Admission(budget)
    with ExitStack() as stack:
        for _ in range(10):  # nothing was served yet: the rate is not known
            stack.enter_context(new.work("a", 5_000))
        assert new.expected_wait == 0
    serve(admission, clock, seconds=100, rate=400)
    with ExitStack() as stack:
        for waiting in range(12):
            assert admission.expected_wait == pytest.approx(5 * waiting, rel=0.01)
            stack.enter_context(admission.work("a", 2_000))
        stack.enter_context(admission.work("a", 2_000))
        with pytest.raises(Overloaded, match=r"takes this server about 65 s; at most 60 s") as caught:
            stack.enter_context(admission.work("b", 1))
        assert caught.value.retry_after == pytest.approx(5, rel=0.05)
        with pytest.raises(Overloaded, match="takes this server about"):
            admission.check_room("b")
    admission.check_room("b")


def test_one_large_request_does_not_keep_the_small_ones_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("onepass.server.engines.admission.time.monotonic", lambda: clock[0])
    admission = Admission(Budget(tokens=1 << 20, requests=100, seconds=60))
    serve(admission, clock, seconds=100, rate=400)
    with admission.work("a", 1_000_000):
        assert admission.expected_wait == pytest.approx(15)
        with admission.work("b", 400):
            pass


def test_what_was_not_served_does_not_count_as_served(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("onepass.server.engines.admission.time.monotonic", lambda: clock[0])
    admission = Admission(Budget(tokens=1 << 20, requests=100, seconds=60))
    serve(admission, clock, seconds=100, rate=400)
    for _ in range(100):
        with pytest.raises(ZeroDivisionError), admission.work("a", 400):
            _ = 1 / 0
    with admission.work("a", 400):
        assert admission.expected_wait == pytest.approx(1, rel=0.01)


def test_a_full_server_is_known_to_be_full_before_a_body_is_read() -> None:
    admission = Admission(Budget(tokens=100, requests=2))
    admission.check_room("a")
    with admission.work("a", 100), pytest.raises(Overloaded, match="100 tokens are waiting"):
        admission.check_room("b")
    with admission.request("a"), admission.request("a"), pytest.raises(Overloaded, match="2 requests"):
        admission.check_room("b")
    admission.check_room("b")


def test_a_request_that_is_too_large_is_refused_even_when_nobody_waits() -> None:
    admission = Admission(Budget(tokens=100, requests=2))
    admission.check_size(MAX_BUDGETS * 100, MAX_SCORES)
    with pytest.raises(TooLong, match="has 1,601 tokens to compute; the limit is 1,600"):
        admission.check_size(MAX_BUDGETS * 100 + 1, 1)
    with pytest.raises(RequestError, match="items times labels must be at most") as caught:
        admission.check_size(1, MAX_SCORES + 1)
    assert caught.value.code == "too_many_scores"
