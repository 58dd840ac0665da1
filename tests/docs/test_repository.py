"""What a forge reads of the repository: its citation, workflows, container and hooks name what exists."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import transduce as td
from recipes.translation import SETTINGS

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_citation_and_changes_have_the_version():
    (version,) = re.findall(r'^version = "(.*)"', PROJECT, re.M)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", ["tests", "nightly"])
def test_a_workflow_calls_scripts_that_exist(name):
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        assert (ROOT / command.split()[1]).is_file()


def test_the_container_installs_extras_that_exist():
    text = (ROOT / "Dockerfile").read_text()
    (extras,) = re.findall(r'"\.\[(.*)\]"', text)
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", PROJECT, re.M)
    for flag in re.findall(r"serve RUN.* (--[a-z-]+) /", text):
        assert f"    {flag[2:].replace('-', '_')}: " in (ROOT / "transduce" / "cli" / "serve.py").read_text()


def test_extras_on_pages_exist_and_readme_blocks_are_narrow():
    """Every extra that a page names exists, all have a row on the page of installation, blocks of the README are narrow."""
    extras = set(
        re.findall(
            r"^([a-z0-9]+) = \[", PROJECT.split("[project.optional-dependencies]")[1].split("\n[project")[0], re.M
        )
    )
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        named = re.findall(r"'\.\[([\w,]+)\]'", page.read_text("utf-8"))
        assert {extra for each in named for extra in each.split(",")} <= extras, page
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "guides" / "installation.md").read_text(), re.M)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} >= extras - {"dev", "bench", "docs"}
    assert max(len(line) for line in re.findall(r"^    .*$", (ROOT / "README.md").read_text("utf-8"), re.M)) <= 85


def test_the_readme_has_the_length_of_the_core():
    files = [path for room in ("model", "decode", "train") for path in (ROOT / "transduce" / room).glob("*.py")]
    n_lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
    said = re.search(r"Model, search and training are ([\d,]+) lines", (ROOT / "README.md").read_text("utf-8"))
    assert said and abs(int(said[1].replace(",", "")) - n_lines) < 300


def test_the_decoding_page_has_every_search_option():
    page = (ROOT / "docs" / "guides" / "decoding.md").read_text("utf-8")
    flags = {f"--{field.name.replace('_', '-')}" for field in fields(td.SearchConfig)} - {"--alignment-heads"}
    assert {flag for flag in flags if f"`{flag}" not in page} == set()  # those heads are of an imported Whisper


def test_the_decoding_page_lists_settings_with_another_alpha():
    page = " ".join((ROOT / "docs" / "guides" / "decoding.md").read_text("utf-8").split())
    said = re.search(r"settings ([\w`, ]+) have an alpha of (\d\.\d)", page)
    others = {
        name: x.decoding.alpha for name, (_, x) in SETTINGS.items() if x.decoding.alpha != td.SearchConfig().alpha
    }
    assert said and others == dict.fromkeys(re.findall(r"`(\w+)`", said[1]), float(said[2]))


def test_pre_commit_hooks_are_those_of_the_test_script():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    script = (ROOT / "scripts" / "test.sh").read_text()
    for hook in repository["hooks"]:
        assert hook["entry"].split()[0] in script
