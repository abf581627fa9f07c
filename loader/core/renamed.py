"""Names of attributes and arguments that a caller knows from elsewhere.

Old names of Windrow still work, and warn; they are kept for one minor version after their successors. Arguments
of other loaders are errors that say what to write.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def old_name(new: str) -> Any:
    """A property that warns and returns the attribute `new` of the same object.

    Example:
        >>> class Point:
        ...     x = 3
        ...     abscissa = old_name("x")
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     Point().abscissa
        3
        >>> print(caught[0].message)
        Point.abscissa is now Point.x
    """
    return _OldName(new)


class _OldName:
    def __init__(self, new: str) -> None:
        self._new = new
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        _warn(f"{owner.__name__}.{self._name} is now {owner.__name__}.{self._new}")
        return getattr(instance, self._new)


def renamed_arguments(**new_of: str) -> Callable[[C], C]:
    """A decorator for classes whose arguments got other names: old ones warn and are passed on.

    Example:
        >>> @renamed_arguments(size="length")
        ... class Line:
        ...     def __init__(self, length):
        ...         self.length = length
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     Line(size=2).length
        2
        >>> print(caught[0].message)
        Line: argument size is now length
    """

    def decorate(cls: C) -> C:
        made: Any = cls
        init = made.__init__

        @functools.wraps(init)
        def with_old_names(self: Any, *args: Any, **more: Any) -> None:
            for old in new_of.keys() & more.keys():
                _warn(f"{cls.__name__}: argument {old} is now {new_of[old]}")
                more[new_of[old]] = more.pop(old)
            init(self, *args, **more)

        made.__init__ = with_old_names
        return cls

    return decorate


def _warn(message: str) -> None:
    # The caller of the property or of the class, two frames above this one.
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def explains_misfits(method: F) -> F:
    """A decorator of a method: a call that does not fit its arguments is an error with the way out.

    The signature stays as it is, for type checkers and at run time. `absent_names` has what is said.
    """

    @functools.wraps(method)
    def checked(*args: Any, **more: Any) -> Any:
        try:
            return method(*args, **more)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # the call did fit, and an error inside stays as it is
            text = str(error)
        from windrow.core.absent_names import misfit  # only for errors

        raise misfit(method, text)

    return cast("F", checked)
