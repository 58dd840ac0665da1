"""Packages for Argos Translate and LibreTranslate: as Argos describes them, and installed and run by it."""

import json
import sys
from pathlib import Path
from zipfile import ZipFile

import ctranslate2
import pytest
import sentencepiece

import transduce as td
from tests.runs import ENGLISH, LITTLE, random_run
from transduce.cli.main import main
from transduce.experiment.config import with_vocabularies
from transduce.files import save_weights
from transduce.model.transformer import Transformer
from transduce.run import Run, load_run, save_run


@pytest.fixture
def run(tmp_path):
    return random_run(tmp_path / "run", model=LITTLE)


def export(run, path, *flags) -> int:
    return main(["export", str(run), str(path), "--to", "argos", *flags])


def translations(folder: Path, lines: list[str]) -> list[str]:
    """What the model and the pieces of a package give, greedily."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    rules = {"suppress_sequences": [["<pad>"], ["<s>"]], "disable_unk": True, "min_decoding_length": 0}
    rows = [pieces.encode(line, out_type=str) for line in lines]
    got = ctranslate2.Translator(str(folder / "model")).translate_batch(
        rows, beam_size=1, max_decoding_length=8, **rules
    )
    return [pieces.decode(each.hypotheses[0]) for each in got]


def test_package_contents_and_outputs(run, tmp_path):
    assert export(run, tmp_path / "en_de.argosmodel", "--languages", "en", "de") == 0
    ZipFile(tmp_path / "en_de.argosmodel").extractall(tmp_path / "installed")
    (folder,) = (tmp_path / "installed").iterdir()
    metadata = json.loads((folder / "metadata.json").read_text())
    assert (metadata["from_code"], metadata["to_code"]) == ("en", "de")
    assert {path.name for path in folder.iterdir()} == {"metadata.json", "model", "sentencepiece.model"}
    ours = td.load(run)(ENGLISH[:6], beam_size=1, length_ratio=0.0, length_extra=8)
    assert translations(folder, ENGLISH[:6]) == ours


def test_invalid_exports_are_refused(run, tmp_path, capsys):
    assert export(run, tmp_path / "a.argosmodel") == 2
    assert capsys.readouterr().err == ("transduce: argos needs the languages; add --languages SOURCE TARGET (en de)\n")
    assert main(["export", str(run), str(tmp_path / "a"), "--to", "onnx", "--languages", "en", "de"]) == 2
    assert capsys.readouterr().err == (
        "transduce: languages are for argos and web, but this is --to onnx; leave them out\n"
    )
    apart = random_run(tmp_path / "apart", model=LITTLE, joint=False)
    assert export(apart, tmp_path / "a.argosmodel", "--languages", "en", "de") == 2
    assert "share a SentencePiece model" in capsys.readouterr().err
    tagged = load_run(run).source_tokenizer.with_symbols(["<2de>", "<2fr>"])  # which argos would put before no text
    many = Run(with_vocabularies(LITTLE, tagged.vocab_size, tagged.vocab_size, joint=True), {}, tagged, tagged)
    save_run(tmp_path / "many", many)
    save_weights(tmp_path / "many" / "model.safetensors", Transformer(many.model))
    assert export(tmp_path / "many", tmp_path / "a.argosmodel", "--languages", "en", "de") == 2
    assert "must translate one pair of languages" in capsys.readouterr().err
    assert not (tmp_path / "a.argosmodel").exists()
    assert export(run, tmp_path / "none" / "a.argosmodel", "--languages", "en", "de") == 2
    assert "an output's folder must exist" in capsys.readouterr().err
    assert export(run, tmp_path / "a.argosmodel", "--languages", "../en", "de") == 2
    assert "a language is a code such as en or pt-BR, but not '../en'" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_argos_installs_and_runs_the_package(run, tmp_path, monkeypatch):
    """With its own search, a beam of 4; its model for the ends of sentences, which it would fetch, is left out."""
    for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    package = pytest.importorskip("argostranslate.package", reason="pip install argostranslate", exc_type=ImportError)
    from argostranslate import translate

    monkeypatch.setattr(translate.MiniSBDSentencizer, "split_sentences", lambda self, text: [text])
    assert export(run, tmp_path / "en_de.argosmodel", "--languages", "en", "de") == 0
    package.install_from_path(tmp_path / "en_de.argosmodel")
    (installed,) = package.get_installed_packages()
    ctranslate = ctranslate2.Translator(str(installed.package_path / "model"), compute_type="auto")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(run / "tokenizer.model"))
    for line in ENGLISH[:6]:
        (got,) = ctranslate.translate_batch(
            [pieces.encode(line, out_type=str)], replace_unknowns=True, beam_size=4, length_penalty=0.2
        )
        text = pieces.decode(got.hypotheses[0]).replace("_", " ")
        assert translate.translate(line, "en", "de").strip() == text.strip() != ""
    assert "argostranslate" in sys.modules
