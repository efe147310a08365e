"""The tree of keys: every path, and where it leads."""

from proxy.settings.model import Settings
from proxy.settings.sections import Backend, Queue
from proxy.settings.tree import dotted, keys, leaves, section_at, undotted


def test_a_list_of_sections_is_one_leaf():
    assert "backends" in leaves(Settings)
    assert not any(path.startswith("backends[") for path in leaves(Settings))
    assert "backends[].url" in [key.path for key in keys(Settings)]


def test_paths_lead_through_sections_and_lists():
    assert section_at(Settings, ("lanes", "short", "queue")) is Queue
    assert section_at(Settings, ("backends", 3)) is Backend
    assert section_at(Settings, ("listen",)) is None
    assert section_at(Settings, ("nothing", "here")) is None


def test_paths_are_written_as_people_read_them():
    assert dotted(("backends", 0, "url")) == "backends[0].url"
    assert dotted(()) == ""


def test_a_path_that_was_written_is_read_back():
    for path in (("backends", 0, "url"), ("scheduling", "adaptive", "floor"), ("listen",), ()):
        assert undotted(dotted(path)) == path
