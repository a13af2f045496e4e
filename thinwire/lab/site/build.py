"""Builds the site with Sphinx, MyST and furo (the extra `docs`). A warning is an error: a link that leads nowhere."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from thinwire.core.version import VERSION
from thinwire.lab.site.links import link_code
from thinwire.lab.site.sources import write

STYLE, ICON = (Path(__file__).with_name(name) for name in ("site.css", "icon.svg"))
PLAIN_FONTS = {  # what a system has: nothing is fetched
    "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif",
    "font-stack--monospace": "ui-monospace, 'Cascadia Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace",
}
SETTINGS: dict[str, Any] = {
    "project": "thinwire",
    "author": "The thinwire developers",
    "copyright": "The thinwire developers. Apache-2.0",
    "version": VERSION,
    "release": VERSION,
    "extensions": ["myst_parser"],
    "myst_enable_extensions": ["colon_fence"],
    "myst_heading_anchors": 4,
    "html_theme": "furo",
    "html_title": f"thinwire {VERSION}",
    "html_copy_source": False,
    "html_show_sourcelink": False,
    "html_show_sphinx": False,
    "html_css_files": ["site.css"],
    "html_favicon": "icon.svg",
    "html_theme_options": {"light_css_variables": PLAIN_FONTS, "dark_css_variables": PLAIN_FONTS},
    "maximum_signature_line_length": 60,
    "python_use_unqualified_type_names": True,
    "toc_object_entries_show_parents": "hide",
    "pygments_style": "default",
    "smartquotes": False,
    "suppress_warnings": ["myst.header"],  # generated entries start at the second level
}


def build(out: Path, work: Path) -> None:
    """The whole site in `out`, from sources in `work`; both are made anew."""
    try:
        from sphinx.application import Sphinx  # noqa: PLC0415  (the extra `docs`)
    except ImportError as error:
        raise ImportError("the site needs Sphinx, MyST and furo: pip install -e '.[docs]'") from error
    for folder in (out, work):
        shutil.rmtree(folder, ignore_errors=True)
    sources, static = work / "pages", work / "static"
    for folder in (sources, static):
        folder.mkdir(parents=True)
    shutil.copyfile(STYLE, static / STYLE.name)
    shutil.copyfile(ICON, sources / ICON.name)
    write(sources)
    app = Sphinx(
        sources,
        None,
        out,
        work / "doctrees",
        "html",
        confoverrides={**SETTINGS, "html_static_path": [str(static)]},
        status=None,
        warning=sys.stderr,
        freshenv=True,
        warningiserror=True,
    )
    app.connect("doctree-read", link_code)
    app.build()
    if app.statuscode:
        raise ValueError("the site has warnings, see above")
