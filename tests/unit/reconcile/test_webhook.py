"""The webhook: what it sends, and what a failure of it does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shieldtx.embedded.free_ports import free_port
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile import webhook
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.notice import notice_of, notice_of_failure
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.reconcile.webhook import Webhook, post
from tests.support.sample_findings import BACK, HOSTILE, PAIR, few_findings, findings, hostile
from tests.support.webhook_server import WebhookServer, webhook_server

SECRETS = ("s3cret-path", "t0ken")
FAILED = notice_of_failure(configuration="nightly", run_id="r1", previous_outcome=None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookServer]:
    monkeypatch.setattr(webhook, "PAUSES_S", (0.0, 0.0))
    with webhook_server() as running:
        yield running


def hook(url: str, **changes) -> Webhook:
    return Webhook(**{"url": url, "token": "t0ken", "allow_http": True, **changes})


def logged(caplog: pytest.LogCaptureFixture) -> Any:
    """Return the one record, after a check that it has no secret."""
    records: list[Any] = caplog.records
    (record,) = records
    assert not [secret for secret in SECRETS if secret in str(vars(record))]
    assert (record.configuration, record.run_id) == ("nightly", "r1")
    return record


def test_notice_is_posted_as_json_with_the_token(server, caplog):
    caplog.set_level(logging.INFO)
    found = findings((PAIR, Verdict.STUCK, 3), (BACK, Verdict.MATCHED, 9), mismatched_events=2)
    notice = notice_of(
        found,
        RunOutcome.MISMATCHES,
        configuration="nightly",
        run_id="r1",
        previous_outcome="CLEAN",
    )

    assert post(hook(server.url), notice)

    assert server.methods == ["POST"]
    (headers,) = server.headers
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == "Bearer t0ken"
    assert server.bodies == [
        {
            "type": "shieldtx.reconciliation",
            "text": "shieldtx reconciliation nightly: MISMATCHES. 3 mismatches in 2 events.",
            "configuration": "nightly",
            "run_id": "r1",
            "outcome": "MISMATCHES",
            "previous_outcome": "CLEAN",
            "recovered": False,
            "started_at": "2026-01-15T12:00:00+00:00",
            "seconds": 4.2,
            "mismatches": 3,
            "mismatched_events": 2,
            "not_judged": 0,
            "totals": {"STUCK": 3, "MATCHED": 9},
        }
    ]
    assert logged(caplog).action == "reconciliation_webhook_called"


@pytest.mark.parametrize("found", [few_findings(), hostile()], ids=["few", "hostile"])
def test_notice_has_no_data_of_the_services(server, found):
    notice = notice_of(
        found, found.outcome, configuration="nightly", run_id="r1", previous_outcome=None
    )
    post(hook(server.url), notice)
    sent = str(server.bodies)
    for data in (HOSTILE, "<script", "orders", "stock", "reserve", "0199", "4711", "example"):
        assert data not in sent


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_busy_webhook_is_called_again(server, status, caplog):
    caplog.set_level(logging.INFO)
    server.statuses = [status, status]
    assert post(hook(server.url), FAILED)
    assert len(server.bodies) == 3
    assert logged(caplog).levelname == "INFO"


def test_webhook_that_stays_busy_is_given_up_and_logged(server, caplog):
    server.status = 503
    assert not post(hook(server.url), FAILED)
    assert len(server.bodies) == 1 + len(webhook.PAUSES_S)
    record = logged(caplog)
    assert (record.levelname, record.action) == ("ERROR", "reconciliation_webhook_failed")
    assert (record.outcome, record.error) == ("ERROR", "HTTP status 503")


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_refusal_is_final(server, status, caplog):
    server.status = status
    assert not post(hook(server.url), FAILED)
    assert len(server.bodies) == 1
    assert logged(caplog).error == f"HTTP status {status}"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_is_not_followed(server, status, caplog):
    with webhook_server() as other:
        server.status, server.location = status, other.url
        assert not post(hook(server.url), FAILED)
        assert other.methods == []
    assert logged(caplog).error == f"HTTP status {status}"


def test_unreachable_webhook_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(webhook, "PAUSES_S", (0.0,))
    assert not post(hook(f"http://127.0.0.1:{free_port()}/s3cret-path"), FAILED)
    assert logged(caplog).error.startswith("ConnectionRefusedError")


def test_server_without_tls_is_not_sent_anything_by_https(server, caplog):
    assert not post(hook(server.url.replace("http:", "https:")), FAILED)
    assert server.bodies == []
    assert "SSL" in logged(caplog).error


def test_silent_webhook_is_given_up_after_the_limit_of_a_step(server, monkeypatch, caplog):
    monkeypatch.setattr(webhook, "ATTEMPT_S", 0.1)
    server.stalls = True
    assert not post(hook(server.url), FAILED)
    assert len(server.bodies) == 3
    assert logged(caplog).error.startswith("TimeoutError")


def test_all_attempts_together_have_a_limit(server, monkeypatch, caplog):
    monkeypatch.setattr(webhook, "ALL_S", 0.2)
    server.stalls = True
    assert not post(hook(server.url), FAILED)
    assert logged(caplog).error == "no response within 0.2 s"


def test_process_without_a_free_thread_logs_the_failure(monkeypatch, caplog):
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread: s3cret-path")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert not post(hook("https://127.0.0.1/s3cret-path"), FAILED)
    assert logged(caplog).error == "RuntimeError"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"url": "http://h/s3cret-path"}, "encrypts nothing"),
        ({"url": "file:///s3cret-path"}, "does not hold a URL"),
        ({"url": "s3cret-path"}, "does not hold a URL"),
        ({"url": "https://:1/s3cret-path"}, "does not hold a URL"),
        ({"url": "https://h:port/s3cret-path"}, "does not hold a URL"),
        ({"url": "https://[::1/s3cret-path"}, "does not hold a URL"),
        ({"url": "https://ann:s3cret-path@h/"}, "use `token`"),
        ({"url": "https://h/s3cret-path\n"}, "ends with a line break"),
        ({"token": "t0ken\r\nHost: x"}, "webhook.token: the variable holds"),
    ],
)
def test_unusable_webhook_is_refused_without_its_value(changes, reason):
    with pytest.raises(ConfigurationError) as refused:
        Webhook(**{"url": "https://h/s3cret-path", "token": "t0ken", **changes})
    assert reason in str(refused.value)
    assert not [secret for secret in SECRETS if secret in str(refused.value)]


def test_webhook_does_not_show_its_secrets():
    assert not [secret for secret in SECRETS if secret in repr(hook("https://h/s3cret-path"))]
