"""Our scheduler does what vLLM's own one did with the same loads, step by step."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from validation import vllm_scheduler
from validation.vllm_scheduler import GROUPS, KINDS, Load, Log, difference, read_logs, simulated

_LOGS = read_logs()


@pytest.mark.parametrize(
    ("load", "log"), _LOGS, ids=[f"{number}-{load.kind}" for number, (load, _) in enumerate(_LOGS)]
)
def test_every_step_is_that_of_vllm(load: Load, log: Log) -> None:
    assert difference(load, log, simulated(load), simulated(load, jump=True)) is None


def test_the_logs_have_what_is_compared() -> None:
    assert {load.kind for load, _ in _LOGS} == set(KINDS)
    assert {load.groups for load, _ in _LOGS} == set(GROUPS)
    for ahead in (False, True):
        logs = [log for load, log in _LOGS if load.ahead == ahead]
        assert sum(log.preemptions for log in logs) > 20
        assert sum(any(log.cached) for log in logs) > 2


def test_a_difference_is_seen() -> None:
    load, log = next(one for one in _LOGS if one[1].preemptions)
    other = load._replace(blocks=load.blocks + 1)
    assert "step" in (difference(load, log, simulated(other), simulated(other, jump=True)) or "")


@pytest.mark.parametrize(
    ("found", "text"), [(None, "is not installed"), ("0.32.1", "vllm 0.32.1 is installed")]
)
def test_another_version_is_refused_with_a_message(
    found: str | None, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(_: str) -> str:
        if found is None:
            raise PackageNotFoundError
        return found

    monkeypatch.setattr(vllm_scheduler, "version", version)
    assert vllm_scheduler.main(["2"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert text in err
    assert err.count("\n") == 1
