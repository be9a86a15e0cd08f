"""Read a page of HTML strictly, so that tests can look into it."""

from html.parser import HTMLParser

EMPTY = ("meta", "input")  # elements without an end


class Element:
    def __init__(self, name: str, attributes: dict) -> None:
        self.name, self.attributes, self.inside = name, attributes, []

    def all(self, *names: str) -> list["Element"]:
        """Return the elements below this one with one of these names, in the order of the page.

        Without names, return all elements below this one.
        """
        found = []
        for part in self.inside:
            if isinstance(part, Element):
                found += ([part] if not names or part.name in names else []) + part.all(*names)
        return found

    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text() for part in self.inside)


class Tree(HTMLParser):
    """Reads strictly: every element must be closed, in the right order."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open = [Element("", {})]
        self.feed(content)
        self.close()
        assert len(self.open) == 1, self.open[-1].name

    @property
    def root(self) -> Element:
        return self.open[0]

    def handle_starttag(self, name, attributes):
        assert len(dict(attributes)) == len(attributes), f"{name} with an attribute twice"
        element = Element(name, dict(attributes))
        self.open[-1].inside.append(element)
        if name not in EMPTY:
            self.open.append(element)

    def handle_startendtag(self, name, attributes):
        self.open[-1].inside.append(Element(name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop().name == name, name

    def handle_data(self, data):
        self.open[-1].inside.append(data)
