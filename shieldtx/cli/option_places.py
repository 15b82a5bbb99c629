"""Options of a group of commands that are given in front of one of its commands."""

from __future__ import annotations

from typing import Any

import typer

from shieldtx.errors import ConfigurationError


def refuse_options_before(context: typer.Context) -> None:
    """Raise ConfigurationError for options of the group, given in front of the invoked command.

    A group that is a command itself has options that its commands do not see. Without an error,
    `reconcile --config payments.toml repair last` would repair what the environment names. Values
    from the environment, and defaults, are meant for the group and change nothing.
    """
    name = context.invoked_subcommand
    group: Any = context.command
    given = [option for option in group.params if is_on_the_command_line(context, option.name)]
    if name is None or not given:
        return
    command = group.get_command(context, name)
    known = {text for option in command.params for text in option.opts}
    taken = [option for option in given if known.intersection(option.opts)]
    others = [_written(context, option) for option in given if option not in taken]
    advice = [
        *([f"write `{_order(context, command, taken)}`"] if taken else []),
        *([f"leave {' and '.join(others)} out, which `{name}` does not take"] if others else []),
    ]
    all_ = " and ".join(_written(context, option) for option in given)
    raise ConfigurationError(
        f"{all_} in front of `{name}` would have no effect: {', and '.join(advice)}"
    )


def is_on_the_command_line(context: typer.Context, option: str) -> bool:
    """Whether an option, by the name of its parameter, was typed: no default, no variable."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _written(context: typer.Context, option: Any) -> str:
    """Return how an option was written: `--no-topics` where it switched the topics off."""
    is_off = context.params.get(option.name) is False and option.secondary_opts
    return str(option.secondary_opts[0] if is_off else option.opts[0])


def _order(context: typer.Context, command: Any, taken: list[Any]) -> str:
    """Return a command line that has the options where they belong."""
    # Whatever the program was started as.
    groups = ["shieldtx", *context.command_path.split()[1:]]
    arguments = [
        p.metavar or p.name.upper() for p in command.params if p.param_type_name == _ARGUMENT
    ]
    options = [option.opts[0] if option.is_flag else f"{option.opts[0]} ..." for option in taken]
    return " ".join([*groups, command.name, *arguments, *options])


_ARGUMENT = "argument"
