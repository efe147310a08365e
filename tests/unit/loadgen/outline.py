"""Reads a page and sees to it that it is whole."""

from html.parser import HTMLParser

VOID = {"meta", "br"}


class Outline(HTMLParser):
    """Checks that every element is closed, and keeps texts and attributes."""

    def __init__(self, document):
        super().__init__()
        self.open = []
        self.texts = []
        self.tags = []
        self.links = []
        self.feed(document)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in {"src", "href"} or "url(" in (value or "")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
