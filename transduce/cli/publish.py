"""`transduce publish RUN USER/NAME`: a finished run on the Hugging Face hub."""

from typing import Annotated

from tyro.conf import Positional, arg

from transduce.cli.common import Flag, OwnRun
from transduce.errors import InputError

Name = Annotated[
    str, arg(metavar="USER/NAME", help="The repository, which is made where there is none.")
]
Revision = Annotated[str | None, arg(metavar="BRANCH", help_behavior_hint="")]


def publish(
    run: OwnRun,
    name: Positional[Name],
    *,
    private: Flag = False,
    revision: Revision = None,
) -> None:
    """Put a finished run on the Hugging Face hub, for RUN or td.load to be hub:USER/NAME anywhere
    else.

    All that the run is used with goes there, with its scores, and MODEL_CARD.md as README.md;
    checkpoints, samples and outputs do not. Needs a token (hf auth login, or HF_TOKEN), and
    huggingface_hub (pip install '.[hub]' in a clone).

    Args:
        private: Only you see the repository.
        revision: The branch to write to, made where there is none, instead of main.
    """
    from transduce.hub import CARD, repository, upload
    from transduce.report.card import is_unchanged, write_card
    from transduce.run import PUBLISHED, WEIGHTS, load_model

    identifier, branch = repository(name)
    if branch is not None:
        raise InputError(
            f"a branch is named by --revision, but this is {name}; use {identifier} --revision "
            f"{branch}"
        )
    if not (run / WEIGHTS).is_file():
        raise InputError(
            f"a finished run has {WEIGHTS}, but {run} has none; let its training end, or make it "
            "of checkpoints: "
            f"transduce average {run} --best 1"
        )
    load_model(run)  # so that nothing goes there that cannot be loaded
    files = {each: run / each for each in PUBLISHED if each != CARD and (run / each).is_file()}
    files[CARD] = write_card(run)
    sizes = {each: path.stat().st_size for each, path in files.items()}
    generated = is_unchanged(files[CARD].read_text("utf-8", errors="replace"))

    def keeps(card: str) -> bool:
        keep = generated and not is_unchanged(card)
        if keep:
            print(f"  {CARD} was changed there, and stays as it is", flush=True)
        return keep

    print(f"to hub:{identifier}, {_shown(sum(sizes.values()))} in {len(files)} files:", flush=True)
    for each, size in sizes.items():
        print(f"  {each}  {_shown(size)}", flush=True)
    url = upload(
        identifier, files, known=PUBLISHED, keeps=keeps, private=private, revision=revision
    )
    print(f"{url}: transduce describe hub:{identifier}{f'@{revision}' if revision else ''}")


def _shown(n_bytes: int) -> str:
    """A size in the unit that suits it."""
    return f"{n_bytes / 1e6:,.1f} MB" if n_bytes >= 1e5 else f"{n_bytes / 1e3:,.1f} kB"
