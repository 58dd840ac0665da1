"""Make docs/page.png: a picture of the server's page with a translated sentence and the decoder's attention.

    transduce serve runs/commands runs/speech runs/language &
    python scripts/ops/picture_page.py http://127.0.0.1:8000 "Did my sister delete the old letter?" docs/page.png

It needs Playwright and a Chromium: `playwright install chromium`, or one of the machine.
"""

import shutil
import sys

from playwright.sync_api import sync_playwright


def main(url: str, line: str, path: str) -> None:
    """Translate the line on the page, point at the largest attention weight, and write the picture."""
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 820, "height": 600}, color_scheme="light")
        page.goto(url)
        page.get_by_role("tab", name="Translate").click()
        page.get_by_label("Text (lines are translated one by one)").fill(line)
        page.get_by_role("button", name="Translate").click()
        cells = page.locator("tbody td")
        cells.first.wait_for()
        likeliest = cells.evaluate_all(
            "all => all.map((cell) => cell.style.getPropertyValue('--weight')).reduce((a, x, i, w) => x > w[a] ? i : a, 0)"
        )
        cells.nth(likeliest).hover()
        page.screenshot(path=path, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
