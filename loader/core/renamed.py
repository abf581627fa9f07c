"""Old names of public attributes and arguments: they still work, and warn.

An old name is kept for one minor version after its successor.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


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
