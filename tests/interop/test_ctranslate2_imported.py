"""Imported models in CTranslate2: from transformers to a run to there, and the same greedy outputs as the run's."""

import json
from pathlib import Path
from typing import Any

import pytest

import transduce as td
from tests.interop import test_fairseq, test_marian
from tests.interop.rivals import LINES
from transduce.cli.main import main

pytestmark = pytest.mark.usefixtures("transformers")

LENGTH = 12


@pytest.mark.parametrize(
    "family", ["marian", *(pytest.param(family, marks=pytest.mark.long) for family in test_fairseq.QUICK)]
)
def test_greedy_outputs_equal_those_of_the_run(tmp_path, spm, family):
    if family == "marian":
        test_marian.rival(tmp_path / "theirs", 1, spm)
    else:
        test_fairseq.rival(tmp_path / "theirs", 1, family)
    run, exported = tmp_path / "run", tmp_path / "exported"
    assert main(["import", str(tmp_path / "theirs"), str(run)]) == 0
    assert main(["export", str(run), str(exported), "--to", "ctranslate2"]) == 0
    translator, lines = td.load_translator(run), [line for line in LINES if line.strip()]
    rules: Any = {"no_repeat_ngram": 0, "repetition_penalty": 1.0, "min_length": 0, "forbid": (), "suppress_first": ()}
    how = {"beam_size": 1, "alpha": 0.0, "max_length": LENGTH, "length_extra": 99, "at_max_length": "by_score", **rules}
    want = [got[0].tokens for got in translator.translate(lines, **how)]
    assert ctranslate2_outputs(exported, translator, lines) == want


def ctranslate2_outputs(exported: Path, translator: td.Translator, lines: list[str]) -> list[list[int]]:
    """The ids that CTranslate2 writes, without their end."""
    import ctranslate2

    settings = json.loads((exported / "config.json").read_text())
    source, target = ([*json.loads((exported / name).read_text())] for name in vocabularies(exported))
    rows = [[source[i] for i in row] for row in translator.sources(lines)]
    rows = [row[:-1] for row in rows] if settings["add_source_eos"] else rows
    opening = [target[i] for i in translator.tokenizer.opening]
    never = {*translator.tokenizer.suppressed, *translator.decoding.suppress}
    engine = ctranslate2.Translator(str(exported), intra_threads=1)
    got = engine.translate_batch(
        rows, target_prefix=[opening] * len(rows), beam_size=1, min_decoding_length=0,
        max_decoding_length=LENGTH + len(opening), suppress_sequences=[[target[i]] for i in sorted(never)],
    )  # fmt: skip
    return [[target.index(token) for token in each.hypotheses[0][len(opening) :]] for each in got]


def vocabularies(exported: Path) -> list[str]:
    """The files of the source's and the target's."""
    shared = (exported / "shared_vocabulary.json").exists()
    return ["shared_vocabulary.json"] * 2 if shared else ["source_vocabulary.json", "target_vocabulary.json"]
