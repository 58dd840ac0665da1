"""scripts/corpora/add_phones.py: a dictionary and a manifest as a person would write them."""

import pytest

from scripts.corpora import add_phones
from transduce.data.speech.manifest import read_manifest

DICTIONARY = """\
;;; a remark
hello HH AH0 L OW1 # greeting
hello(2) HH EH0 L OW1
it's IH1 T S
world W ER1 L D
"""
HEADER = "id\taudio\tseconds\tspeaker\tage\ttext\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "words.dict").write_text(DICTIONARY)
    (tmp_path / "in.tsv").write_text(
        HEADER + "a\tsound/a.wav\t1.5\tann\t7\tHello, WORLD!\nb\t/far/b.wav\t2\tbob\t8\tit's the … WORLD of the\n"
    )
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def test_every_word_has_its_phones_and_the_sound_stays_where_it_is(folder, capsys):
    out = folder / "elsewhere" / "out.tsv"
    assert add_phones.main([str(folder / "words.dict"), str(folder / "in.tsv"), str(out)]) == 0
    first, second = read_manifest(out)
    assert first.columns == {"age": "7", "phones": "HH AH L OW W ER L D"}
    assert second.columns == {"age": "8", "phones": "IH T S SPN W ER L D SPN SPN"}
    before = read_manifest(folder / "in.tsv")
    assert [r.audio.resolve() for r in (first, second)] == [r.audio.resolve() for r in before]
    assert [r.text for r in (first, second)] == [r.text for r in before]
    assert capsys.readouterr().out == (
        f"{out}: 2 recordings; 3 of 7 words are not in the dictionary: the (2), of (1)\n"
    )


def test_stress_may_be_kept(folder):
    out = folder / "out.tsv"
    assert add_phones.main([str(folder / "words.dict"), str(folder / "in.tsv"), str(out), "--keep-stress"]) == 0
    assert read_manifest(out)[0].columns["phones"] == "HH AH0 L OW1 W ER1 L D"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hello\n", "a line must be a word and its phones, but {path}, line 1, is 'hello'; add them"),
        (";;; no word\n", "a dictionary must have words and their phones, but {path} has none; name another file"),
    ],
    ids=["a word alone", "no word"],
)
def test_what_is_no_dictionary_is_refused(folder, capsys, text, told):
    path = folder / "bad.dict"
    path.write_text(text)
    assert add_phones.main([str(path), str(folder / "in.tsv"), str(folder / "out.tsv")]) == 2
    assert capsys.readouterr().err == f"transduce: {told.format(path=path)}\n"
    assert not (folder / "out.tsv").exists()
