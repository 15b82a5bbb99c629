"""Options of a group of commands that are given before one of its commands."""

from __future__ import annotations

from typing import Any

import typer

from shieldtx.errors import ConfigurationError


def refuse_options_before(context: typer.Context) -> None:
    """Raise ConfigurationError for options of the group that precede the invoked command.

    A group that is itself a command has options that its commands do not see. Without the error,
    `reconcile --config payments.toml repair last` would repair the services of SHIELDTX_APP. Values
    from the environment and defaults are ignored, since they are meant for the group.
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
    """Whether a parameter was typed, rather than a default or an environment variable."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _written(context: typer.Context, option: Any) -> str:
    """Return an option as it was typed: `--no-topics` if the topics were switched off."""
    is_off = context.params.get(option.name) is False and option.secondary_opts
    return str(option.secondary_opts[0] if is_off else option.opts[0])


def _order(context: typer.Context, command: Any, taken: list[Any]) -> str:
    """Return the command line with the options in their right places."""
    # Independent of the name by which the program was started.
    groups = ["shieldtx", *context.command_path.split()[1:]]
    arguments = [
        p.metavar or p.name.upper() for p in command.params if p.param_type_name == _ARGUMENT
    ]
    options = [option.opts[0] if option.is_flag else f"{option.opts[0]} ..." for option in taken]
    return " ".join([*groups, command.name, *arguments, *options])


_ARGUMENT = "argument"
