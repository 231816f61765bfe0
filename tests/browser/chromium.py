"""The browser of the tests: one that this machine has, or else the one that Playwright brings."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# The first is the same engine without the parts that only a screen needs: the tests take half the time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The path of a browser: CADENCE_CHROMIUM, or one of this machine's; None if there is none."""
    named = os.environ.get("CADENCE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def playwrights_own() -> bool:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path).exists()


def main() -> None:
    """Make sure that there is one, before any test starts."""
    if find() or playwrights_own():
        return
    print("== Installing a browser for the tests")
    if subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False).returncode:
        sys.exit(
            "The tests need a Chromium. Install one (on Debian: apt-get install chromium-headless-shell), "
            "or name its path in CADENCE_CHROMIUM."
        )


if __name__ == "__main__":
    main()
