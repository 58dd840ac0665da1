"""The first run of scripts/bench start_from never hears the new words."""

from bench import start_from as bench_start_from

from transduce.data.manifest import read_manifest


def test_the_new_words_are_in_every_sentence_or_in_none(tmp_path):
    bench_start_from.split(tmp_path, 200, None)
    texts = {path.stem: [r.text.split() for r in read_manifest(path)] for path in tmp_path.glob("*.tsv")}
    assert len(texts) == 6 and len(texts["train"]) == 200
    for name, lines in texts.items():
        assert lines
        for line in lines:
            assert any(word in line for word in bench_start_from.WORDS) is not name.startswith("first_")
    whole = [len(read_manifest(bench_start_from.SOUND / f"{name}.tsv")) for name in ("valid", "test")]
    assert [len(texts[n]) + len(texts[f"first_{n}"]) for n in ("valid", "test")] == whole
