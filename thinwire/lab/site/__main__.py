"""`python -m thinwire.lab.site [FOLDER]`: the site in build/site, or in a folder of your choice."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from thinwire.lab.site.build import build
from thinwire.lab.site.sources import ROOT

if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        build(out.resolve(), Path(work))
    print(f"{out / 'index.html'}: {len(list(out.rglob('*.html')))} pages in {time.monotonic() - begun:.0f} s")
