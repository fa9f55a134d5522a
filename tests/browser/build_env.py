"""Builds `.browser`, what the browser's tests need: Playwright, which drives a browser, and axe-core, which looks for
faults that shut people out. The browser itself is the machine's own chromium (Debian: `apt-get install chromium`).

Through the user's own pip and npm settings, once per set of versions. What cannot be installed is named here, and the
tests that need it are skipped; this exits 0 either way.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from subprocess import PIPE, STDOUT

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
REQUIREMENTS = HERE / "requirements.txt"
FOLDER = ROOT / ".browser"
PACKAGES, AXE, STAMP = FOLDER / "packages", FOLDER / "axe.min.js", FOLDER / "built-from.sha256"
AXE_VERSION = "4.14.0"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class CannotBuild(Exception):
    """Why something is missing; the message is for the user."""


def browser() -> str | None:
    """The machine's own chromium."""
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


def built_from() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes() + AXE_VERSION.encode() + sys.version.encode()).hexdigest()


def is_built() -> bool:
    return STAMP.is_file() and STAMP.read_text(encoding="utf-8").strip() == built_from()


def install_playwright() -> None:
    listed = ["--no-deps", "--only-binary", ":all:", "--target", str(PACKAGES), "--requirement", str(REQUIREMENTS)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", *listed]
    run(pip, "pip failed")


def install_axe() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CannotBuild("there is no npm")
    run([npm, "pack", "--silent", "--pack-destination", str(FOLDER), f"axe-core@{AXE_VERSION}"], "npm failed")
    archive = FOLDER / f"axe-core-{AXE_VERSION}.tgz"
    with tarfile.open(archive) as tar:
        member = tar.extractfile("package/axe.min.js")
        assert member is not None, "axe-core has its script where it always was"
        AXE.write_bytes(member.read())
    archive.unlink()


def main() -> int:
    if browser() is None:
        print("browser: no chromium, so the page is not tried in a browser\n  Debian: apt-get install chromium")
        return 0
    if is_built():
        print("browser: .browser is up to date")
        return 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    try:
        install_playwright()
    except CannotBuild as reason:
        shutil.rmtree(FOLDER, ignore_errors=True)
        print(f"browser: no Playwright, so the page is not tried in a browser\n  {reason}")
        return 0
    try:
        install_axe()
    except CannotBuild as reason:
        print(f"browser: no axe-core, so its rules are not tried\n  {reason}")
    STAMP.write_text(built_from() + "\n", encoding="utf-8")
    print("browser: built .browser")
    return 0


def run(command: list[str], complaint: str) -> None:
    done = subprocess.run(command, stdout=PIPE, stderr=STDOUT, text=True, check=False, cwd=FOLDER)
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise CannotBuild(f"{complaint}: {lines[-1].strip() if lines else 'it said nothing'}")


if __name__ == "__main__":
    sys.exit(main())
