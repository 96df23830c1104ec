"""Direct mode: what Python does to the handler of SIGBUS leaves the engine's in front.

A handler that took its place would end the process at the next fault. So a change is made behind it: for the few
microseconds of the change the handler is the one behind the engine's. A fault just then, of another thread or of a
handler of a signal that comes meanwhile, ends the process."""

from __future__ import annotations

import faulthandler
import signal
from functools import wraps
from typing import Any

from . import _native

_behind = _native.call_behind
_is_kept = False


def keep_in_front() -> None:
    """Wraps what changes the handler in Python, once."""
    global _is_kept
    if _is_kept:
        return
    _is_kept = True
    enable, disable, set_handler = faulthandler.enable, faulthandler.disable, signal.signal

    @wraps(enable)
    def enable_behind(*args: Any, **options: Any) -> None:
        was_enabled = faulthandler.is_enabled()
        if not was_enabled:
            _behind(enable, 2)  # a number: no file is flushed meanwhile
        try:
            enable(*args, **options)  # sets no handler again
        except BaseException:
            if not was_enabled:
                _behind(disable)
            raise

    @wraps(disable)
    def disable_behind() -> Any:
        return _behind(disable)

    @wraps(set_handler)
    def set_handler_behind(signalnum: Any, handler: Any) -> Any:
        if signalnum == signal.SIGBUS:
            return _behind(set_handler, signalnum, handler)
        return set_handler(signalnum, handler)

    changed: Any = [(faulthandler, "enable", enable_behind), (faulthandler, "disable", disable_behind)]
    for module, name, function in [*changed, (signal, "signal", set_handler_behind)]:
        setattr(module, name, function)
