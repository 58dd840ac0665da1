"""Imported models that are trained on: what they learn begins and ends as in transformers, and the recipes take them."""

import pytest

import transduce as td
from tests.interop import test_fairseq, test_speech
from tests.interop.test_speech import WORDS
from tests.runs import ENGLISH, GERMAN
from transduce.cli.main import main
from transduce.experiment.start import saved_tokenizers
from transduce.tasks.translate import in_languages

pytestmark = pytest.mark.usefixtures("transformers")

SHORT = ["--training.max-updates", "2", "--training.validate-every", "2", "--training.optim.warmup-steps", "1"]


def train(*words: str) -> int:
    """The exit code of a recipe."""
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "--device", "cpu", *SHORT])
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("family", "languages"),
    [("m2m100", ("en", "de")), ("nllb", ("eng_Latn", "deu_Latn")), ("mbart50", ("en_XX", "de_DE")), ("bart", ("", ""))],
)
def test_source_and_target_ids_equal_those_of_transformers(tmp_path, family, languages):
    """A language here is named by the way to search."""
    _, theirs = test_fairseq.rival(tmp_path / "theirs", 1, family)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    decoding = td.SearchConfig(source_language=languages[0], target_language=languages[1])
    source, target = in_languages(*saved_tokenizers(tmp_path / "new", tmp_path / "run"), decoding)
    assert source.with_eos(source.encode(ENGLISH)) == theirs(ENGLISH)["input_ids"]
    assert target.with_eos(target.encode(GERMAN)) == theirs(text_target=GERMAN)["input_ids"]
    if languages[1]:
        with pytest.raises(ValueError, match=r"a language must be one of the model's .*'xx'"):
            in_languages(source, target, td.SearchConfig(source_language=languages[0], target_language="xx"))


def test_whisper_target_ids_equal_transformers_in_each_language(tmp_path):
    """The run is imported for English. Whisper's tokenizer finds languages by their place among all, which are not here."""
    rival = test_speech.whisper(tmp_path, steps=0)
    assert main(["import", str(rival.directory), str(rival.run)]) == 0
    _, tokenizer = saved_tokenizers(tmp_path / "new", rival.run, needs=("bos_id", "eos_id"))
    want = rival.tokenizer(WORDS)["input_ids"]  # in English
    for language in ("en", "de"):
        _, spoken = in_languages(tokenizer, tokenizer, td.SearchConfig(target_language=language))
        tag = rival.tokenizer.convert_tokens_to_ids(f"<|{language}|>")
        rows = spoken.with_eos(spoken.encode(WORDS))
        assert [[spoken.bos_id, *row] for row in rows] == [[row[0], tag, *row[2:]] for row in want]


@pytest.mark.train
def test_fine_tuning_a_multilingual_translation_model(tmp_path, capsys):
    test_fairseq.rival(tmp_path / "theirs", 1, "m2m100")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    for name, lines in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / f"text.{name}").write_text("".join(f"{line}\n" for line in lines))
    files = [str(tmp_path / f"text.{name}") for name in ("en", "de")]
    words = ["translation", "files", "--run", str(tmp_path / "new"), "--start-from", str(tmp_path / "run")]
    words += ["--train-source", files[0], "--train-target", files[1], "--valid-source", files[0]]
    words += ["--valid-target", files[1], "--decoding.source-language", "en", "--decoding.max-length", "5"]
    assert train(*words, "--decoding.target-language", "xx") == 2
    assert "a language must be one of the model's" in capsys.readouterr().err
    assert train(*words, "--decoding.target-language", "de") == 0
    new = td.load_translator(tmp_path / "new")
    assert new(ENGLISH[:2]) == new(ENGLISH[:2], source_language="en", target_language="de")


@pytest.mark.train
def test_fine_tuning_whisper_in_another_language(tmp_path):
    """With its features, and with another language than the English that it was imported for."""
    (tmp_path / "theirs").mkdir()
    rival = test_speech.whisper(tmp_path / "theirs", steps=1)
    assert main(["import", str(rival.directory), str(rival.run)]) == 0
    rows = [f"{i}\t{path}\t0.9\ts{i}\t{text}\n" for i, (path, text) in enumerate(zip(rival.sounds, WORDS, strict=True))]
    (tmp_path / "train.tsv").write_text("id\taudio\tseconds\tspeaker\ttext\n" + "".join(rows))
    words = ["speech-to-text", "manifest", "--run", str(tmp_path / "new"), "--start-from", str(rival.run)]
    words += ["--train", str(tmp_path / "train.tsv"), "--valid", str(tmp_path / "train.tsv"), "--ctc-weight", "0"]
    words += ["--augmentation.vtlp", "0", "--augmentation.silence", "0", "--decoding.target-language", "de"]
    words += ["--decoding.length-extra", "5", "--cache", str(tmp_path / "cache")]
    assert train(*words) == 0
    new, old = td.load_transcriber(tmp_path / "new"), td.load_transcriber(rival.run)
    assert new.feature_extractor.config == old.feature_extractor.config
    (spoken,) = new.words(rival.sounds[:1], [WORDS[0]])
    assert [word.text for word in spoken] == WORDS[0].split()  # by the heads that follow the sound
    want = rival.tokenizer(WORDS)["input_ids"]  # in English
    for language, tokenizer in (("en", old.tokenizer), ("de", new.tokenizer)):
        spoken = rival.tokenizer.convert_tokens_to_ids(f"<|{language}|>")
        rows = tokenizer.with_eos(tokenizer.encode(WORDS))
        assert [[tokenizer.bos_id, *row] for row in rows] == [[row[0], spoken, *row[2:]] for row in want]
