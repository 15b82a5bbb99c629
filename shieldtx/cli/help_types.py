"""The types of options and arguments in the help: only those that tell what to type."""

from __future__ import annotations

from functools import partial
from typing import Any


def show_useful_types(command: Any) -> None:
    """Leave out `<bool>` of flags and the brackets of lists, for a command and those below it."""
    for below in getattr(command, "commands", {}).values():
        show_useful_types(below)
    # The option --help exists only in the parameters of a context.
    command.get_params = partial(_params, command.get_params)


def _params(get_params: Any, context: Any) -> list[Any]:
    params: list[Any] = get_params(context)
    for param in params:
        # Typer before 0.29 has no such method, and shows the types as they are.
        display = getattr(param, "display_type_rich", None)
        shown = None if display is None else display(ctx=context)
        if shown is not None:
            param.display_type_rich = partial(_type, _useful(shown))
    return params


def _type(shown: str, ctx: Any) -> str:
    del ctx
    return shown


def _useful(shown: str) -> str:
    if shown == "<bool>":
        return ""
    return shown.replace("<list[", "<").replace("]>", ">")
