"""Validation and test sets stay as they are: line n of an output belongs to line n of the files."""

import pytest

from transduce.data.corpus import Directions, Files, Folder

ENGLISH, GERMAN = ["One.", "", "Three.", "Four."], ["Eins.", "Zwei.", "", "Vier."]


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.en").write_text("".join(f"{line}\n" for line in ENGLISH))
        (tmp_path / f"{split}.de").write_text("".join(f"{line}\n" for line in GERMAN))
        rows = zip(ENGLISH, GERMAN, strict=True)
        (tmp_path / f"{split}.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows))
    return tmp_path


def corpora(folder):
    yield Folder(data=folder, valid="valid")
    sides = {f"{split}_{side}": folder / f"{split}.{language}" for split in ("train", "valid", "test")
             for side, language in (("source", "en"), ("target", "de"))}  # fmt: skip
    yield Files(**sides)
    yield Files(**{f"{split}_tsv": folder / f"{split}.tsv" for split in ("train", "valid", "test")})


def test_blank_pairs_are_dropped_from_training_only(folder):
    for corpus in corpora(folder):
        train, *others = corpus.splits(1, folder / "cache")
        assert (train.source, train.target, train.n_blank) == (["One.", "Four."], ["Eins.", "Vier."], 2)
        for text in others:
            assert (text.source, text.target, text.n_blank) == (ENGLISH, GERMAN, 0)


def test_blank_lines_of_multilingual_test_sets_are_kept_untagged(folder):
    corpus = Directions(data=folder, languages=("en", "de"), valid="valid", test_directions=("en-de",))
    train, _, test = corpus.splits(1)
    assert len(train) == 4 and test.target == GERMAN
    assert test.source == ["<2de> One.", "", "<2de> Three.", "<2de> Four."]
    assert corpus.test_groups() == ["en-de"] * 4


def test_a_split_of_only_blank_pairs_is_refused(folder):
    (folder / "test.de").write_text("\n" * 4)
    with pytest.raises(
        ValueError, match=r"needs a pair with text on both sides, but there is none in the 4 lines of .*test\.de"
    ):
        Folder(data=folder, valid="valid").splits(1)
