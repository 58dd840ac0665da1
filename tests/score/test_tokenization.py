"""BLEU finds the words of every script, as sacrebleu does where it is told the language."""

import sys
from urllib.error import URLError

import pytest
import sacrebleu

from transduce.cli.main import main
from transduce.score.measures import LIBRARIES, bleu, bleu_lowercase, chrf_words, get_measure, tokenization

TEXTS = {
    "zh": ["我今天很高兴见到你。", "两个人在公园里的长椅上看书。", "GPT-2 是一个语言模型。"],
    "ja-mecab": ["今日はあなたに会えてうれしいです。", "二人が公園のベンチで本を読んでいる。"],
    "ko-mecab": ["오늘 당신을 만나서 기쁩니다.", "두 사람이 공원 벤치에서 책을 읽고 있다."],
    "char": ["วันนี้ฉันดีใจที่ได้พบคุณ", "ສະບາຍດີຕອນເຊົ້າທຸກຄົນ"],
    "13a": [
        "Ich freue mich, dich heute zu sehen.",
        "Сегодня я рад тебя видеть.",
        "The sign says 出口 and nothing else.",
    ],
}


@pytest.mark.parametrize("name", TEXTS)
def test_script_of_the_references_selects_the_tokenization(monkeypatch, name):
    monkeypatch.setattr("transduce.score.measures.find_spec", lambda module: module)
    assert all(tokenization([text]) == name for text in TEXTS[name]) and tokenization(TEXTS[name]) == name
    assert tokenization([*TEXTS[name], *TEXTS["13a"] * 5]) == "13a", "the majority of the letters"


@pytest.mark.parametrize("name", ["zh", "char", "13a", "ja-mecab", "ko-mecab"])
def test_scores_equal_sacrebleu_with_that_tokenization(name):
    references = TEXTS[name]
    hypotheses = [text[:2] + text[3:] for text in references]
    score = bleu(hypotheses, references, resamples=0)
    assert score.value == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references], tokenize=name).score)
    assert f"|tok:{name}" in score.signature and score.value > 0
    other = bleu_lowercase(hypotheses, references, resamples=0)
    assert f"|tok:{name}" in other.signature


@pytest.mark.parametrize("name", ["ja-mecab", "ko-mecab"])
def test_missing_tokenizer_library_falls_back_to_characters(monkeypatch, name):
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    (value, _, signature) = (score := bleu(TEXTS[name], TEXTS[name], resamples=0)).value, score.n, score.signature
    assert value == pytest.approx(100) and "|tok:char|" in signature
    with pytest.raises(
        ValueError, match=rf"^--tokenize {name} needs .* pip install '\.\[mecab\]', or name --tokenize char$"
    ):
        get_measure("bleu", name)(TEXTS[name], TEXTS[name])


def test_a_tokenization_whose_model_cannot_be_downloaded_is_named(monkeypatch, tmp_path):
    def unreachable(url, path):
        raise URLError("Name or service not known")

    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.download_file", unreachable)
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(ValueError) as error:
        get_measure("bleu", "flores200")(["a b c d"], ["a b c d"])
    assert str(error.value) == (
        "--tokenize flores200 needs a model, which is downloaded once, but: <urlopen error Name or service not known>; "
        "check the network, or name another"
    )


def test_the_command_takes_a_tokenization(tmp_path, capsys):
    (tmp_path / "hyp").write_text("".join(f"{text[1:]}\n" for text in TEXTS["zh"]))
    (tmp_path / "ref").write_text("".join(f"{text}\n" for text in TEXTS["zh"]))
    sides = [text[1:] for text in TEXTS["zh"]], [TEXTS["zh"]]
    for options, name in (([], "zh"), (["--tokenize", "char"], "char"), (["--tokenize", "intl"], "intl")):
        assert main(["score", "bleu", str(tmp_path / "hyp"), str(tmp_path / "ref"), *options]) == 0
        want = sacrebleu.corpus_bleu(*sides, tokenize=name).score
        printed = capsys.readouterr().out
        assert printed.startswith(f"BLEU {want:.2f} ") and f"|tok:{name}|" in printed


def test_too_short_references_cause_a_warning(caplog):
    assert bleu(["good morning all"], ["good morning all"], resamples=0).value == 0
    (record,) = caplog.records
    assert "no reference has that many (tok:13a)" in record.getMessage()
    caplog.clear()
    bleu(["good morning to all", "hi"], ["good morning to all", "hi"], resamples=0)
    assert not caplog.records


def test_chrf_with_words_equals_that_of_sacrebleu(tmp_path, capsys):
    hypotheses, references = ["The cat sat on a mat.", "Yes"], ["The cat sat on the mat.", "Yes, it did."]
    want = sacrebleu.corpus_chrf(hypotheses, [references], word_order=2)
    score = chrf_words(hypotheses, references, resamples=0)
    assert (score.name, score.value) == ("chrF2++", pytest.approx(want.score)) and "|nw:2|" in score.signature
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    assert main(["score", "chrf", str(tmp_path / "hyp"), str(tmp_path / "ref"), "--word-order", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"chrF2++ {want.score:.2f} ")
