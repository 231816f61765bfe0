"""A lint of the templates: what the Content-Security-Policy forbids, and what HTMX must have beside it."""

import re
from pathlib import Path

import pytest
from django.template import engines

TEMPLATES = sorted(Path("templates").rglob("*.html"))


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_nothing_inline(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"<style|\sstyle=|\son\w+=|hx-on|hx-vals='js|javascript:", text)
    assert "|safe" not in text
    assert "autoescape off" not in text
    assert "https://" not in text


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_every_hx_get_has_an_address_to_follow_without_it(path: Path) -> None:
    for tag in re.findall(r"<[^>]*\bhx-(?:get|post)=[^>]*>", path.read_text()):
        assert re.search(r'\b(?:href|action)="', tag), tag


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_it_compiles(path: Path) -> None:
    engines["django"].get_template(str(path.relative_to("templates")))


def test_the_project_names_no_machine_of_ours() -> None:
    for path in [
        Path("README.md"),
        Path("Makefile"),
        Path("requirements.txt"),
        Path(".ci/run"),
        *Path("docs").rglob("*.md"),
    ]:
        assert re.search(r"/(?:home|root|Users|work|mnt)/", path.read_text()) is None, path
