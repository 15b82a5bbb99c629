"""The application that a command runs with: declared by the service, or from its settings alone."""

from __future__ import annotations

import sys
import traceback
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import typer

from shieldtx.app.application import ShieldTx
from shieldtx.domain.reasons import reason_of
from shieldtx.errors import ConfigurationError, ShieldTxError
from shieldtx.settings.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Invocation:
    """The options that all commands share."""

    app: str | None
    is_app_typed: bool = False
    """Whether the command line names the application, and not SHIELDTX_APP."""

    def declared(self) -> ShieldTx:
        """Return the application of `--app`; raises ConfigurationError."""
        if self.app is None:
            raise ConfigurationError(
                "this command runs what your code declares: name the module and the ShieldTx in "
                "it, --app shop.orders:shield, or set SHIELDTX_APP"
            )
        return load(self.app)

    def service(self) -> ShieldTx:
        """Return the application of `--app`, or one from the settings, without handlers."""
        return ShieldTx(Settings.from_env()) if self.app is None else load(self.app)


def invocation(context: typer.Context) -> Invocation:
    """Return the options that the program was started with."""
    return context.ensure_object(Invocation)


def load(target: str) -> ShieldTx:
    """Import `module:object`, also from the current directory; raises ConfigurationError."""
    name, _, path = target.partition(":")
    if not name or not path:
        raise ConfigurationError(
            f"--app {target!r}: write it as module:object, for example shop.orders:shield"
        )
    found: object = _module(name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"--app {target!r}: {name} has no {path!r}")
        found = getattr(found, part)
    if not isinstance(found, ShieldTx):
        raise ConfigurationError(
            f"--app {target!r}: that is a {type(found).__name__}, not a ShieldTx"
        )
    _ = found.settings  # raises ConfigurationError, before a command has done anything
    return found


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        # Standard output is for results; a module may print while it is imported.
        with redirect_stdout(sys.stderr):
            return import_module(name)
    except ShieldTxError:
        raise
    except (Exception, SystemExit) as error:
        # Of the module, or of a parent package.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise ConfigurationError(
                f"--app: there is no module {missing!r} in {here} nor among the installed ones"
            ) from error
        raise ConfigurationError(
            f"--app: importing {name} failed with {reason_of(error)} ({_place(error)})"
        ) from error


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}"
