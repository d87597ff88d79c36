"""Runs examples/questions/ and keeps their pictures as docs/images/question_NAME.png.

python tools/pages/make_questions.py [NAME...]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples/questions"
_WIDTH = 900  # pixels


def main() -> None:
    """Run the scripts named on the command line, or all, and keep what they draw."""
    names = sys.argv[1:] or sorted(path.stem for path in SCRIPTS.glob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            subprocess.run([sys.executable, SCRIPTS / f"{name}.py"], cwd=folder, check=True)
            with Image.open(Path(folder) / f"{name}.png") as drawn:
                height = round(_WIDTH * drawn.height / drawn.width)
                shown = drawn.convert("RGB").resize((_WIDTH, height), Image.Resampling.LANCZOS)
            target = ROOT / f"docs/images/question_{name}.png"
            shown.quantize(64).save(target, optimize=True)
            print(target.name)


if __name__ == "__main__":
    main()
