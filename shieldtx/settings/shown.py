"""Defaults and ranges of settings, as the help of commands and the reference show them."""

from __future__ import annotations

from datetime import timedelta

from pydantic.fields import FieldInfo


def default_of(setting: FieldInfo) -> str:
    """Return the default of a setting as text; "" if it has none."""
    default = setting.default
    if setting.is_required():
        return "required"
    if default is None:
        return ""
    if isinstance(default, timedelta):
        return _duration(default)
    # As a variable would contain it.
    return str(default).lower() if isinstance(default, bool) else str(default)


def range_of(setting: FieldInfo) -> str:
    """Return the allowed range of a number as text; "" if the setting has none."""
    limits = {
        name: getattr(each, name)
        for each in setting.metadata
        for name in ("ge", "le")
        if hasattr(each, name)
    }
    match limits:
        case {"ge": least, "le": most}:
            return f"{least:g} to {most}"
        case {"ge": least}:
            return f"at least {least:g}"
    return ""


def _duration(default: timedelta) -> str:
    if not default:
        return "0, for ever"
    is_whole = default.days and default == timedelta(days=default.days)
    return f"{default.days} days" if is_whole else f"{default.total_seconds():g} s"
