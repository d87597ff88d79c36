"""Runs examples/questions/ and saves their pictures as docs/images/question_NAME.png.

    python docs/make_questions.py [NAME...]

Needs Chromium, which opens the HTML files that the scripts write.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "examples/questions"
HIDDEN = "<style>.modebar-container {display: none}</style>"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    """Run the scripts named on the command line, or all, and photograph what they draw."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"needs one of {', '.join(BROWSERS)}")
    names = sys.argv[1:] or sorted(path.stem for path in SCRIPTS.glob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            subprocess.run([sys.executable, SCRIPTS / f"{name}.py"], cwd=folder, check=True)
            picture(browser, Path(folder) / f"{name}.html", HERE / f"images/question_{name}.png")


def picture(browser: str, page: Path, target: Path) -> None:
    """Save a page as a PNG that is 900 pixels wide, without buttons and without empty space."""
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("<body>", f"<body>{HIDDEN}"), encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    shot = ("--window-size=900,900", "--virtual-time-budget=6000", f"--screenshot={target}")
    subprocess.run([browser, *options, *shot, page.as_uri()], check=True, capture_output=True)
    with Image.open(target) as shown:
        whole = shown.convert("RGB")
    drawn = ImageChops.difference(whole, Image.new("RGB", whole.size, "white")).getbbox()
    bottom = drawn[3] if drawn else whole.height
    whole.crop((0, 0, whole.width, bottom + 12)).quantize(64).save(target, optimize=True)
    print(target.name)


if __name__ == "__main__":
    main()
