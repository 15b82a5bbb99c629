"""What can be asked for, and how databases and groups are named."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.expectations import (
    NOBODY,
    ExpectedGroup,
    Received,
    Sent,
    expectation_of,
)
from shieldtx.reconcile.jdbc import jdbc_address
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase, from_json, to_json
from shieldtx.states import TxKind

SECRET = "s3cret/with:odd@signs"
URL = "postgresql+psycopg://anna:s3cret%2Fwith%3Aodd%40signs@db.example:6432/orders"


def request(**changes):
    fields = {
        "upstream": ServiceDatabase(name="orders", url=URL),
        "downstream": ServiceDatabase(name="stock", url=URL, schema="shield"),
        "folder": Path("report"),
    }
    return ReconcileRequest(**{**fields, **changes})


def test_a_request_comes_out_of_json_as_it_went_in():
    asked = request(
        groups=(ExpectedGroup(name="stock", topics=("orders.placed",)),),
        margin=timedelta(seconds=90),
        jdbc_jar=Path("driver.jar"),
    )
    line = to_json(asked)
    assert b"\n" not in line
    assert from_json(line) == asked


def test_a_request_shows_no_password():
    assert SECRET not in repr(request())
    assert "s3cret" not in repr(request())


def test_a_request_that_cannot_be_read_is_refused_without_repeating_it():
    with pytest.raises(ConfigurationError) as refusal:
        from_json('{"upstream": {"name": "orders", "url": ["s3cret"]}, "downstream": "s3cret"}')
    assert "upstream.url" in str(refusal.value)
    assert "s3cret" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_negative_margin_is_refused():
    with pytest.raises(ConfigurationError, match="margin"):
        request(margin=timedelta(seconds=-1))


def test_rollbacks_flow_the_other_way():
    forth, back = request().flows
    assert (forth.kind, forth.upstream.name, forth.downstream.name) == (
        TxKind.COMMIT,
        "orders",
        "stock",
    )
    assert (back.kind, back.upstream.name, back.downstream.name) == (
        TxKind.ROLLBACK,
        "stock",
        "orders",
    )


def test_a_jdbc_url_holds_neither_user_nor_password():
    address = jdbc_address("orders", URL)
    assert address.url == "jdbc:postgresql://db.example:6432/orders"
    assert address.properties["user"] == "anna"
    assert address.properties["password"] == SECRET
    assert "s3cret" not in repr(address)


def test_what_libpq_and_jdbc_have_in_common_is_passed_on():
    address = jdbc_address(
        "orders", "postgresql://a:b@[::1]/o%20k?sslmode=require&connect_timeout=3&keepalives=1"
    )
    assert address.url == "jdbc:postgresql://[::1]:5432/o%20k"
    assert address.properties["sslmode"] == "require"
    assert address.properties["connectTimeout"] == "3"
    assert "keepalives" not in address.properties


def test_the_session_is_read_only():
    properties = jdbc_address("orders", URL).properties
    assert (properties["readOnly"], properties["readOnlyMode"]) == ("true", "always")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlite:///orders.db", "PostgreSQL only"),
        ("postgresql://a:s3cret@/orders", "TCP"),
        ("postgresql://a:s3cret@/orders?host=/run/postgresql", "TCP"),
        ("postgresql://a:s3cret@h:1/orders?host=h1:1&host=h2:2", "TCP"),
        ("postgresql://h/orders", "user"),
        ("postgresql://a:s3cret@h", "database"),
        ("postgresql://a:s3cret@h/orders?passfile=x", "passfile"),
        ("not a url, s3cret", "cannot be read"),
    ],
)
def test_a_database_that_jdbc_cannot_reach_is_refused_without_repeating_the_url(url, hint):
    with pytest.raises(ConfigurationError, match=hint) as refusal:
        jdbc_address("orders", url)
    assert "orders" in str(refusal.value)
    assert "s3cret" not in str(refusal.value)
    assert refusal.value.__cause__ is None


SENT = [Sent(topic="orders.placed", event_type="orders.placed")]
RECEIVED = [Received(group="stock", topic="orders.placed", event_type="orders.placed")]


def test_groups_should_receive_what_they_have_received_before():
    expectation = expectation_of(TxKind.COMMIT, None, sent=SENT, received=RECEIVED)
    assert expectation.groups == (
        ExpectedGroup(name="stock", topics=("orders.placed",), event_types=("orders.placed",)),
    )
    assert expectation.names == ("stock",)


def test_a_type_that_no_group_receives_may_be_meant_for_others():
    other = Sent(topic="orders.paid", event_type="orders.paid")
    with_it = expectation_of(TxKind.COMMIT, None, sent=[*SENT, other], received=RECEIVED)
    assert with_it == expectation_of(TxKind.COMMIT, None, sent=SENT, received=RECEIVED)


def test_where_nothing_was_ever_received_the_groups_have_to_be_named():
    silent = expectation_of(TxKind.COMMIT, None, sent=SENT, received=[])
    assert "name the groups" in silent.obstacle
    assert not expectation_of(TxKind.COMMIT, None, sent=[], received=[]).obstacle


def test_a_rollback_that_no_group_receives_is_still_owed():
    expectation = expectation_of(TxKind.ROLLBACK, None, sent=SENT, received=[])
    assert [group.name for group in expectation.groups] == [NOBODY]
    assert expectation.groups[0].event_types == ("orders.placed",)
    assert not expectation.obstacle


def test_chosen_groups_replace_the_past_but_not_the_groups_that_have_rows():
    chosen = [ExpectedGroup(name="billing"), ExpectedGroup(name="x", kind=TxKind.ROLLBACK)]
    expectation = expectation_of(TxKind.COMMIT, chosen, sent=SENT, received=RECEIVED)
    assert expectation.groups == (ExpectedGroup(name="billing"),)
    assert expectation.names == ("billing", "stock")


def test_a_direction_without_a_chosen_group_goes_by_the_past():
    chosen = [ExpectedGroup(name="billing")]
    expectation = expectation_of(TxKind.ROLLBACK, chosen, sent=SENT, received=RECEIVED)
    assert expectation.names == ("stock",)
