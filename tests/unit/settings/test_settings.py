"""Settings from the environment: all errors are named at once, without any secret."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from shieldtx import Settings
from shieldtx.errors import ConfigurationError
from shieldtx.settings.shown import default_of, range_of

SECRET = "hunter2"
LONG_SECRET = "hunter2-" * 4
URL = f"postgresql+psycopg://shop:{SECRET}@127.0.0.1:5432/shop"
ENOUGH = {"SHIELDTX_SOURCE": "shop", "SHIELDTX_DATABASE_URL": URL}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch):
    """Set exactly these variables of shieldtx."""

    def have(**variables: str) -> None:
        for name, value in {**ENOUGH, **variables}.items():
            monkeypatch.setenv(name, value)

    for name in Settings.model_fields:
        monkeypatch.delenv(f"SHIELDTX_{name.upper()}", raising=False)
    return have


def refusal() -> str:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_env()
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_source_and_database_are_enough(environment):
    environment()
    settings = Settings.from_env()
    assert (settings.source, settings.shards, settings.database_schema) == ("shop", None, None)
    assert settings.url.password == SECRET
    assert settings.url.database == "shop"


def test_scheme_of_hosting_providers_is_that_of_psycopg(environment):
    environment(
        SHIELDTX_DATABASE_URL=f"postgres://shop:{SECRET}@127.0.0.1:5432/shop?sslmode=require"
    )
    url = Settings.from_env().url
    assert (url.drivername, url.password) == ("postgresql+psycopg", SECRET)
    assert (url.host, url.port, url.database) == ("127.0.0.1", 5432, "shop")
    assert url.query == {"sslmode": "require"}


def test_missing_settings_are_named_all_at_once(environment):
    message = refusal()
    assert "SHIELDTX_SOURCE is not set: the name of this service, as in orders" in message
    assert "SHIELDTX_DATABASE_URL is not set: the URL of the service's own database" in message


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("SOURCE", "the shop", "cannot be used"),
        ("DATABASE_POOLER", "pgbouncer", "Input should be 'none' or 'transaction'"),
        ("FAILURE_LIMIT", "-1", "must not be below 0 seconds"),
        ("DATABASE_URL", f"shop:{SECRET}@127.0.0.1", "not a database URL"),
        ("DATABASE_URL", f"postgresql+psycopg://shop:x@y:{SECRET}@h/d", "not a database URL"),
        ("DATABASE_URL", f"postgresql+psycopg://shop@h:{SECRET}/d", "not a database URL"),
        ("DATABASE_URL", "", "not a database URL"),
        ("DATABASE_URL", f"oracle://shop:{SECRET}@h/d", "no dialect for 'oracle'"),
        (
            "DATABASE_URL",
            f"postgresql+asyncpg://shop:{SECRET}@h/d",
            "use postgresql or postgresql+psycopg or sqlite or sqlite+pysqlite",
        ),
        ("DATABASE_SCHEMA", "Robert'); DROP", "not a name for a schema"),
        ("DATABASE_SCHEMA", "pg_catalog", "not a name for a schema"),
        ("SHARDS", "0", "greater than or equal to 1"),
        ("SHARDS", "40000", "less than or equal to 32768"),
        ("SHARDS", "many", "valid integer"),
        ("KAFKA_SECURITY_PROTOCOL", "TLS", "'PLAINTEXT', 'SSL'"),
        ("TOPIC_PREFIX", "eu/", "match pattern"),
        ("SIGNING_KEY", SECRET, "key 1 has 7 bytes, the least is 32"),
        ("SIGNING_KEY", f"{LONG_SECRET}, {SECRET}", "key 2 has 7 bytes, the least is 32"),
        ("SIGNING_KEY", f"{LONG_SECRET},", "key 2 has 0 bytes, the least is 32"),
        ("SIGNING_KEY", f"{LONG_SECRET}ß", "key 1 holds other characters"),
        ("TOPIC_PARTITIONS", "0", "greater than or equal to 1"),
        ("RELAY_BATCH_SIZE", "10001", "less than or equal to 10000"),
        ("RELAY_POLL_INTERVAL", "0", "longer than 0 seconds"),
        ("RELAY_POLL_INTERVAL", "-3", "longer than 0 seconds"),
        (
            "RELAY_LEASE",
            "soon",
            "'soon' is not a duration; use seconds (90), units (2h, 15 min, 7d) or ISO 8601",
        ),
        ("RELAY_WAKEUP", "perhaps", "valid boolean"),
        ("STOP_TIMEOUT", "nan", "'nan' is not a duration"),
        ("STOP_TIMEOUT", "1e300", "longer than a duration can be"),
        ("MAX_PAYLOAD_BYTES", "0", "greater than or equal to 1"),
        ("HTTP", "9464", "not an address; it looks like 127.0.0.1:9464, or [::1]:9464"),
        ("HTTP", ":9464", "not an address"),
        ("HTTP", "localhost:http", "not an address"),
        ("HTTP", "localhost:65536", "not an address"),
        ("HTTP", "localhost:-1", "not an address"),
    ],
)
def test_bad_value_is_named_by_its_variable(environment, name, value, problem):
    environment(**{f"SHIELDTX_{name}": value})
    message = refusal()
    assert message.startswith(f"SHIELDTX_{name}: ")
    assert problem in message


def test_several_bad_values_are_named_at_once(environment):
    environment(SHIELDTX_SHARDS="no", SHIELDTX_RELAY_LEASE="0", SHIELDTX_SOURCE="a b")
    message = refusal()
    assert [part.split(":")[0] for part in message.split("; ")] == [
        "SHIELDTX_SOURCE",
        "SHIELDTX_SHARDS",
        "SHIELDTX_RELAY_LEASE",
    ]


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("7", timedelta(seconds=7)),
        ("0.25", timedelta(milliseconds=250)),
        ("PT1M30S", timedelta(seconds=90)),
        ("P7D", timedelta(days=7)),
    ],
)
def test_duration_is_seconds_or_iso_8601(environment, text, duration):
    environment(SHIELDTX_RELAY_POLL_INTERVAL=text)
    assert Settings.from_env().relay_poll_interval == duration


@pytest.mark.parametrize(
    ("lease", "timeout", "fits"), [("30", "23.9", True), ("30", "24", False), ("10", "30", False)]
)
def test_batch_has_to_end_within_its_lease(environment, lease, timeout, fits):
    environment(SHIELDTX_RELAY_LEASE=lease, SHIELDTX_RELAY_SEND_TIMEOUT=timeout)
    if fits:
        assert Settings.from_env().relay_send_timeout < timedelta(seconds=24)
    else:
        message = refusal()
        assert message.startswith("SHIELDTX_RELAY_SEND_TIMEOUT (")
        assert "below 0.8 of SHIELDTX_RELAY_LEASE" in message


@pytest.mark.parametrize(("inbox", "fits"), [("P3D", True), ("P2D", False)])
def test_inbox_retention_is_at_least_that_of_the_outbox(environment, inbox, fits):
    environment(SHIELDTX_RETENTION_OUTBOX="P3D", SHIELDTX_RETENTION_INBOX=inbox)
    if fits:
        assert Settings.from_env().retention_inbox == timedelta(days=3)
    else:
        assert refusal().startswith("SHIELDTX_RETENTION_INBOX (2 days, 0:00:00) must not be below")


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        ("HALF_CHECK_TIMEOUT", "HALF_CHECK_INTERVAL"),
        ("BARRIER_PATIENCE", "HALF_CHECK_TIMEOUT"),
        ("HALF_MAX_AGE", "RETENTION_BARRIER"),
    ],
)
def test_times_of_half_messages_are_consistent(environment, shorter, longer):
    times = {"BARRIER_PATIENCE": 1, "HALF_CHECK_TIMEOUT": 2, "HALF_CHECK_INTERVAL": 3}
    times |= {"HALF_MAX_AGE": 4, "RETENTION_BARRIER": 5}
    environment(**{f"SHIELDTX_{name}": str(value) for name, value in times.items()})
    Settings.from_env()
    environment(**{f"SHIELDTX_{n}": str(v) for n, v in (times | {shorter: times[longer]}).items()})
    message = refusal()
    assert f"SHIELDTX_{shorter}" in message
    assert f"SHIELDTX_{longer}" in message


def test_secrets_are_in_no_text_of_the_settings(environment, caplog):
    environment(SHIELDTX_KAFKA_SASL_PASSWORD=SECRET, SHIELDTX_SIGNING_KEY=LONG_SECRET)
    settings = Settings.from_env()
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%s %r %s", settings, settings, settings.url)
    texts = [repr(settings), str(settings), f"{settings.url!r}", f"{settings.url}", caplog.text]
    texts += [repr(settings.signing_keys), str(settings.signing_keys)]
    assert all(SECRET not in text for text in texts)
    assert settings.kafka_sasl_password == SecretStr(SECRET)


def test_several_signing_keys_are_separated_by_commas(environment):
    environment()
    assert Settings.from_env().signing_keys == ()
    environment(SHIELDTX_SIGNING_KEY=f"{LONG_SECRET} , {LONG_SECRET[::-1]}")
    keys = Settings.from_env().signing_keys
    assert [key.get_secret_value() for key in keys] == [LONG_SECRET, LONG_SECRET[::-1]]


def test_settings_made_in_code_are_checked_and_hide_secrets():
    with pytest.raises(ConfigurationError) as caught:
        Settings(source="a b", database_url=f"nonsense {SECRET}", shard=3)  # type: ignore[call-arg]
    assert "SHIELDTX_SOURCE: the name 'a b' cannot be used" in str(caught.value)
    found = caught.value.__cause__
    assert isinstance(found, ValidationError)
    assert SECRET not in f"{caught.value} {found}"
    assert {problem["loc"][0] for problem in found.errors()} == {
        "source",
        "database_url",
        "shard",
    }


def test_settings_are_immutable(environment):
    environment()
    with pytest.raises(ValidationError, match="frozen"):
        Settings.from_env().shards = 3


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("relay_send_timeout", "RELAY_LEASE"),
        ("half_check_interval", "HALF_CHECK_TIMEOUT"),
        ("half_check_timeout", "HALF_CHECK_INTERVAL"),
        ("half_check_timeout", "BARRIER_PATIENCE"),
        ("barrier_patience", "HALF_CHECK_TIMEOUT"),
        ("half_max_age", "RETENTION_BARRIER"),
        ("retention_barrier", "HALF_MAX_AGE"),
        ("retention_inbox", "RETENTION_OUTBOX"),
    ],
)
def test_rule_between_settings_is_in_the_description(rule, names):
    assert f"SHIELDTX_{names}" in Settings.model_fields[rule].description


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_allowed_values_are_in_the_description(name):
    field = Settings.model_fields[name]
    values = getattr(field.annotation, "__args__", ())
    assert [v for v in values if isinstance(v, str) and v not in field.description] == []


@pytest.mark.parametrize(
    ("name", "default", "limits"),
    [
        ("source", "required", ""),
        ("database_schema", "", ""),
        ("trace", "false", ""),
        ("database_pooler", "none", ""),
        ("shards", "", "1 to 32768"),
        ("half_check_growth", "1.0", "1 to 10"),
        ("trace_rows", "1000000", "at least 1"),
        ("half_check_longest", "3600 s", ""),
        ("retention_outbox", "7 days", ""),
        ("retention_parked", "0, for ever", ""),
    ],
)
def test_default_and_range_are_shown_as_a_variable_has_them(name, default, limits):
    field = Settings.model_fields[name]
    assert (default_of(field), range_of(field)) == (default, limits)


def test_default_of_days_and_hours_is_shown_whole():
    assert default_of(FieldInfo(default=timedelta(days=1, hours=6))) == "108000 s"


def test_every_setting_has_a_description():
    described = {name: f.description for name, f in Settings.model_fields.items()}
    assert all(text for text in described.values()), described


TEXTS = (str, str | None, SecretStr | None)
TYPED = sorted(name for name, f in Settings.model_fields.items() if f.annotation not in TEXTS)


@pytest.mark.parametrize("name", TYPED)
def test_every_typed_setting_is_read_from_its_variable(environment, name):
    environment(**{f"SHIELDTX_{name.upper()}": "not a value of anything"})
    assert refusal().startswith(f"SHIELDTX_{name.upper()}: ")


def test_text_setting_is_read_from_its_variable(environment):
    environment(SHIELDTX_KAFKA_BOOTSTRAP="a:1,b:2", SHIELDTX_KAFKA_SASL_USERNAME="shop")
    settings = Settings.from_env()
    assert (settings.kafka_bootstrap, settings.kafka_sasl_username) == ("a:1,b:2", "shop")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:65535", "localhost:9464"])
def test_address_is_a_host_and_a_port(environment, address):
    environment(SHIELDTX_HTTP=address)
    assert Settings.from_env().http == address
