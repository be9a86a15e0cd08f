"""Reads the list of submissions in a Gradescope export, ``submission_metadata.yml``.

For each submission the file also has the results of all its uploads: hundreds of megabytes in a
course of a hundred students. These results are not needed here. They are skipped before Python
objects are made of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

METADATA = "submission_metadata.yml"  # the name of the file
SKIPPED = (":results", ":history")  # keys whose values are not read
# The parser in C is many times as fast. Not every build of the package has it.
PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
EMPTY = yaml.ScalarEvent(None, "tag:yaml.org,2002:null", (False, False), "null")


def read(path: Path) -> Any:
    """Return what the file holds, with None as the value of each key in ``SKIPPED``.

    Raises:
        yaml.YAMLError: the file is no YAML.
        RecursionError: its lists lie too deep inside each other.
        OSError: the file cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        return _Loader(yaml.parse(file, Loader=PARSER)).get_single_data()


class _Loader(Composer, SafeConstructor, Resolver):
    """Makes objects of the events of a YAML file. A tag may be the name of a Ruby class."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._events = _without_results(events)
        self._next = next(self._events, None)

    # Composer reads events by these three methods.

    def peek_event(self) -> yaml.Event | None:
        return self._next

    def check_event(self, *kinds: type[yaml.Event]) -> bool:
        return isinstance(self._next, kinds) if kinds else self._next is not None

    def get_event(self) -> yaml.Event | None:
        event, self._next = self._next, next(self._events, None)
        return event


def _ruby(loader: _Loader, tag: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return loader.construct_object(yaml.ScalarNode("tag:yaml.org,2002:str", node.value))


_Loader.add_multi_constructor("!ruby/", _ruby)


def _without_results(events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
    """Yield the events of a file, with ``EMPTY`` in place of each value of a key in ``SKIPPED``.

    An alias of something in a skipped value is also replaced by ``EMPTY``.
    """
    anchors: set[str] = set()  # the names that aliases may use
    for event in events:
        yield from _node(event, events, anchors)


def _node(
    event: yaml.Event, events: Iterator[yaml.Event], anchors: set[str]
) -> Iterator[yaml.Event]:
    """Yield ``event``, which begins a node. Then yield the node's other events from ``events``."""
    if isinstance(event, yaml.AliasEvent):
        yield event if event.anchor in anchors else EMPTY
        return
    if anchor := getattr(event, "anchor", None):
        anchors.add(anchor)
    yield event
    if isinstance(event, yaml.SequenceStartEvent):
        while not isinstance(inner := next(events), yaml.SequenceEndEvent):
            yield from _node(inner, events, anchors)
        yield inner
    elif isinstance(event, yaml.MappingStartEvent):
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            yield from _node(key, events, anchors)
            value = next(events)
            if isinstance(key, yaml.ScalarEvent) and key.value in SKIPPED:
                _skip(value, events)
                yield EMPTY
            else:
                yield from _node(value, events, anchors)
        yield key


def _skip(event: yaml.Event, events: Iterator[yaml.Event]) -> None:
    """Read the node that begins with ``event`` to its end, and drop it.

    The node's other events are the next ones in ``events``.
    """
    depth = int(isinstance(event, yaml.CollectionStartEvent))
    while depth:
        inner = next(events)
        depth += isinstance(inner, yaml.CollectionStartEvent)
        depth -= isinstance(inner, yaml.CollectionEndEvent)
