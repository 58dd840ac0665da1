"""The benchmark gives CTranslate2 the run's own model."""

from bench.translation import load_ctranslate2

import transduce as td
from tests.runs import ENGLISH, LITTLE, random_run


def test_ctranslate2_gives_the_same_translations(tmp_path):
    run, lines = random_run(tmp_path / "run", model=LITTLE), sorted({*ENGLISH})
    theirs = load_ctranslate2(run, tmp_path / "out", "float32", threads=1, beam_size=1, batch_size=4)(lines)
    ours = td.load_translator(run)(lines, beam_size=1, max_length=256, length_ratio=0, length_extra=256)
    assert theirs == ours
