"""Objects of a user's modules by name, such as `train:dataset`, for options and arguments.

Invariant: the working folder is on the search path, as for `python -m`.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from windrow.errors import WindrowError

if TYPE_CHECKING:
    from windrow.iter_dataset import IterDataset
    from windrow.map_dataset import MapDataset

    AnyDataset = MapDataset[Any] | IterDataset[Any]


def function_named(text: str) -> Callable[..., Any]:
    """The function `module:name`.

    Raises:
        click.BadParameter: If it does not exist.
    """
    found = _object(text, "write module:function")
    if not callable(found):
        raise click.BadParameter(f"{text!r} is not a function")
    function: Callable[..., Any] = found
    return function


def dataset_named(text: str) -> AnyDataset:
    """The dataset `module:name`, or the dataset that a function of that name returns.

    Raises:
        click.BadParameter: If it does not exist.
        WindrowError: What the module, or the function, raises.
    """
    import windrow

    kinds = (windrow.MapDataset, windrow.IterDataset)
    found = _object(text, "write module:dataset, where dataset is a variable or a function")
    if not isinstance(found, kinds) and callable(found):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise click.BadParameter(
                f"{text!r} must be a function that needs no argument: {error}"
            ) from error
        found = found()
    if not isinstance(found, kinds):
        raise click.BadParameter(
            f"{text!r} is of type {type(found).__name__}, and must be a MapDataset or an IterDataset,"
            " or a function that returns one"
        )
    return found


def _object(text: str, how: str) -> Any:
    module, _, name = text.partition(":")
    if not module or not name:
        raise click.BadParameter(f"{text!r}: {how}")
    if module.endswith(".py"):
        path, folder = os.path.relpath(module), ""
        if path.startswith(os.pardir):  # a module is found from the working folder on
            folder, path = os.path.split(os.path.abspath(module))
        own = path.removesuffix(".py").replace(os.sep, ".")
        way = f"cd to {folder}, and write" if folder else "write"
        raise click.BadParameter(f"{text!r} names a file, not a module; {way} {own}:{name}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return pkgutil.resolve_name(text)
    except WindrowError:
        raise  # the module makes the dataset, and its message says more
    except (ImportError, AttributeError, ValueError) as error:
        raise click.BadParameter(f"{text!r}: {error}") from error
