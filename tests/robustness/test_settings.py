"""Any environment at all: settings, or one error that names the variables and no secret."""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Mapping
from contextlib import suppress
from unittest import mock

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from shieldtx import Settings, ShieldTx
from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection
from shieldtx.errors import ConfigurationError
from tests.robustness import strategies

SECRET = "s3cr3tw0rd"
URL = f"postgresql+psycopg://shop:{SECRET}@127.0.0.1:5432/shop"
PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
ENOUGH = {"SHIELDTX_SOURCE": "shop", "SHIELDTX_DATABASE_URL": URL}
NAMES = [f"SHIELDTX_{name.upper()}" for name in Settings.model_fields]

# As the operating system has them: no NUL, and bytes that are not UTF-8 as lone surrogates.
texts = st.one_of(
    st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=60),
    st.text(st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"])),
    strategies.injections,
)
numbers = st.sampled_from(
    [
        *("0", "-1", "1e3", "9" * 400, "9" * 5000, "NaN", "inf", "-inf", "1e308", "0x10", "1_000"),
        *("\u0661", "9223372036", "99999999999999", "PT1S", "P999999999D", "P1Y", "1 2", "true"),
    ]
)
schemes = st.sampled_from(
    [
        *("postgresql", "postgresql+psycopg", "postgres", "sqlite", "mysql", "postgresql+asyncpg"),
        *("postgresql+psycopg2", "postgresql+psycopg_async", "sqlite+aiosqlite", "", "a+b+c"),
    ]
)
urls = st.builds(
    "{}://{}{}{}{}".format,
    schemes,
    st.sampled_from(["", f"shop:{SECRET}@", f"shop:a@{SECRET}@", f"{SECRET}:x@", f":{SECRET}@"]),
    st.sampled_from(["", "h", "127.0.0.1", "[::1]", "[::1", f"h:{SECRET}", "h:0", "h:99999"]),
    st.sampled_from(["", "/", "/d", f"/{SECRET}@h/d", '/x"; DROP DATABASE shop; --', "/d#f", "//"]),
    st.sampled_from(["", f"?password={SECRET}", f"?{SECRET}", "?options=-c x", "?a=1&a=2", "?%ff"]),
)
environments = st.dictionaries(
    st.sampled_from(NAMES), texts | numbers | urls | st.just(SECRET), max_size=6
)


def outcome(variables: Mapping[str, str]) -> Settings | str:
    """Return the settings of an environment, or the complete text of its error."""
    others = {name: text for name, text in os.environ.items() if name not in NAMES}
    with mock.patch.dict(os.environ, others | ENOUGH | dict(variables), clear=True):
        try:
            return Settings.from_env()
        except ConfigurationError as error:
            return "".join(traceback.format_exception(error)) + repr(error)


@given(environments)
@settings(phases=PHASES, max_examples=400)
@example({"SHIELDTX_DATABASE_URL": f"postgresql://shop:a@{SECRET}@h/d"})
@example({"SHIELDTX_DATABASE_URL": f"postgresql://shop:a@{SECRET}/b@h/d"})
@example({"SHIELDTX_DATABASE_URL": f"postgresql://shop:x@h:{SECRET}/d"})
@example({"SHIELDTX_DATABASE_URL": f"postgresql://{SECRET}:x@h/d"})
@example({"SHIELDTX_KAFKA_SASL_PASSWORD": f"{SECRET}\udcff"})
@example({"SHIELDTX_STOP_TIMEOUT": "99999999999999"})
@example({"SHIELDTX_TOPIC_PARTITIONS": "9" * 20})
def test_environment_is_accepted_or_refused_by_variable_name(
    variables: dict[str, str],
) -> None:
    found = outcome(variables)
    if isinstance(found, str):
        assert any(name in found for name in variables), found
        _assert_without_secrets(found, variables)
        return
    _assert_without_secrets(f"{found!r}{found}{found.url!r}", variables, shows_url=True)
    _assert_usable(found)


def _assert_without_secrets(
    text: str, variables: Mapping[str, str], *, shows_url: bool = False
) -> None:
    """Assert that no secret variable's value is in the text; other variables' values may be.

    Of a URL that is shown, the password is masked; its user and its query are not.
    """
    with_secret = {name for name, value in variables.items() if SECRET in value}
    hidden = {f"SHIELDTX_{name}" for name in ("DATABASE_URL", "KAFKA_SASL_PASSWORD", "SIGNING_KEY")}
    is_shown = shows_url and re.search(f"(=|//){SECRET}", str(variables))
    if with_secret <= hidden and not is_shown:
        assert SECRET not in text


def _assert_usable(found: Settings) -> None:
    """Assert that accepted settings work later: no name needs quotes, no number overflows."""
    assert re.fullmatch(r"[A-Za-z0-9._-]*", f"{found.source}{found.topic_prefix}")
    assert re.fullmatch(r"[a-z0-9_]*", found.database_schema or "")
    longest = max(value.total_seconds() for _, value in found if hasattr(value, "total_seconds"))
    assert longest <= 3_200_000_000, "a hundred years: what locks and databases can count"
    assert found.topic_partitions <= 100_000
    assert (found.topic_replication or 1) < 2**15
    assert found.max_payload_bytes <= 16 * 1024 * 1024
    assert found.url.get_dialect().driver in {"psycopg", "pysqlite"}
    ShieldTx(found).close()
    with suppress(ConfigurationError):
        KafkaBroker.from_settings(found)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+asyncpg://shop:{SECRET}@h/d",
        f"postgresql+psycopg2://shop:{SECRET}@h/d",
        f"postgresql+psycopg_async://shop:{SECRET}@h/d",
        f"postgresql+pg8000://shop:{SECRET}@h/d",
        f"sqlite+aiosqlite:///{SECRET}",
        f"postgresql+{SECRET}://h/d",
    ],
)
def test_unsupported_driver_is_refused_with_the_supported_one(url: str) -> None:
    found = outcome({"SHIELDTX_DATABASE_URL": url})
    assert isinstance(found, str)
    assert "SHIELDTX_DATABASE_URL: " in found
    assert "postgresql+psycopg" in found
    assert SECRET not in found


def test_debug_log_contains_no_secret_of_the_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    variables = {
        "SHIELDTX_DATABASE_URL": f"postgresql+psycopg://shop:{SECRET}@127.0.0.1:1/d?sslmode=disable",
        "SHIELDTX_KAFKA_SASL_PASSWORD": SECRET,
        "SHIELDTX_KAFKA_SASL_USERNAME": "shop",
        "SHIELDTX_KAFKA_SASL_MECHANISM": "PLAIN",
        "SHIELDTX_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SHIELDTX_KAFKA_BOOTSTRAP": "127.0.0.1:1",
    }
    found = outcome(variables)
    assert isinstance(found, Settings)
    app = ShieldTx(found)
    with caplog.at_level(logging.DEBUG):
        for attempt in (app.schema.current, lambda: app.broker.topics().describe(["t"])):
            with pytest.raises(Exception, match=r".") as caught:
                attempt()
            logging.getLogger("test").error("failed", exc_info=caught.value)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "address",
    [
        *("h:0", "h:65536", "h:" + "9" * 5000, "h:\u0661\udcff", ":1", "h"),
        *(f"http://u:{SECRET}@h", f"u:{SECRET}@h:9092", "PLAINTEXT://h:9092"),
    ],
)
def test_impossible_broker_address_is_refused_by_its_place(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        KafkaConnection(bootstrap_servers=f"127.0.0.1:9092,{address}")
    message = str(caught.value)
    assert message.startswith("SHIELDTX_KAFKA_BOOTSTRAP: address 2 is not host:port")
    assert SECRET not in message
