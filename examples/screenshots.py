"""Pictures of a report's page, as docs/gallery.md shows them: wide and light, narrow and dark.

python examples/screenshots.py runs/demo/report.html docs/images
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

LOOKS = {"report-light": (1100, 1500, "light"), "report-phone": (390, 1500, "dark")}


def main() -> None:
    page, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height, scheme) in LOOKS.items():
            size = {"width": width, "height": height}
            tab = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # pyright: ignore[reportArgumentType]
            tab.goto(page.as_uri())
            tab.wait_for_selector("body[data-ready=yes]")
            picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
            picture.quantize(240, dither=Image.Dither.NONE).save(folder / f"{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
