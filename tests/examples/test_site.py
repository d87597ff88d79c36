"""The site of the documentation, as far as it can be checked without MkDocs (`make docs`)."""

import re

import mist_sim
from tests.conftest import ROOT
from tools.pages.check_site import broken_links
from tools.pages.site_hooks import API, COPIED, STUB, on_page_markdown


def test_every_page_stands_in_the_navigation_once():
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    listed = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    made = [*COPIED, *(f"reference/python/{page}.md" for page in API)]
    assert sorted(listed) == sorted([*pages, *made])


def test_the_python_reference_has_every_public_name():
    shown = {module for _, modules, _ in API.values() for module in modules}
    homes = re.findall(
        r"^from mist_sim\.(\w+)\S* import \w+ as \w+$", STUB.read_text(), re.MULTILINE
    )
    assert len(homes) == len(mist_sim.__all__) - 1  # __version__ comes from elsewhere
    assert set(homes) == shown


def test_a_list_after_text_is_parted_from_it_but_not_in_code():
    class Page:
        class file:  # noqa: N801 - MkDocs calls it so
            src_uri = "guides/page.md"

    text = "Text:\n- one\n- two\n\n```console\nText:\n- one\n```\n"
    assert on_page_markdown(text, Page) == text.replace(
        "Text:\n- one\n- two", "Text:\n\n- one\n- two"
    )
    linked = on_page_markdown("[code](../../examples/own_router.py)", Page)
    assert linked == "[code](../examples/own_router.py.md)\n"
    linked = on_page_markdown("[tests](../../CONTRIBUTING.md#tests)", Page)
    assert linked == "[tests](../CONTRIBUTING.md#tests)\n"


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there"></a><a href="https://example.org"></a><p id="x"></p><a href="#x">'
    )
    (tmp_path / "b.html").write_text('<h1 id="there"></h1><img src="no.png"><a href="a.html#y">')
    assert broken_links(tmp_path) == ["b.html: a.html#y", "b.html: no.png"]
