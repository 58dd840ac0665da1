"""Words of outputs: which tokens spell them, how sure a model is of them, and when they were said."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Library, decoders, models, pre_tokenizers

import transduce as td
from tests.language_runs import any_tokenizer
from tests.runs import ENGLISH, FEATURES, RATE, SPECIAL, library_tokenizer, random_speech_run, sound
from transduce.data.features import FeatureConfig, FeatureExtractor, VectorConfig, VectorReader
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer
from transduce.decode.config import BeamConfig
from transduce.files import save_weights
from transduce.model.config import Tokens
from transduce.model.transformer import Transformer
from transduce.run import load_run, save_run
from transduce.tasks.markup import translate_markup
from transduce.tasks.outputs import Output, Segment, Transcript, WordAlignment, joined_texts, word_alignment, word_spans
from transduce.tasks.speech import _seconds, boundaries, ctc_posteriors, ctc_spans
from transduce.tasks.translate import join_parts

TEXTS = ["Ay  me. Größe, 東京 🙂 it's", "a", "", " "]


@pytest.mark.parametrize("kind", ["characters", "bytes", "sentencepiece", "unigram", "metaspace"])
def test_word_spans_cover_exactly_their_tokens(kind):
    """Whatever marks a space: characters, bytes, ▁ before a word; letters of several bytes, and spaces alone."""
    library = kind in ("unigram", "metaspace")
    texts = [*ENGLISH[:6], " ", ""] if library else TEXTS
    tokenizer = (
        JSONTokenizer(library_tokenizer(kind.replace("metaspace", "bpe"), ENGLISH).to_str().encode())
        if library
        else any_tokenizer(kind)
    )
    if kind == "characters":
        texts = ["Ay  me. Größe, 東京 🙂 it's", " All\n"]
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        got = word_spans(tokenizer, ids)
        assert [word for word, _, _ in got] == tokenizer.decode([ids])[0].split()
        end = 0
        for n, (word, start, stop) in enumerate(got):
            assert start == end < stop  # every token belongs to one word
            before, whole, less = tokenizer.decode([ids[:start], ids[:stop], ids[: stop - 1]])
            assert before.split() == [each for each, _, _ in got[:n]]
            assert whole.split()[n] == word and less.split()[n : n + 1] != [word]
            end = stop
        assert not "".join(tokenizer.decode([ids[end:]])).strip(), text


def test_ctc_spans_equal_the_best_path_by_brute_force(rng):
    """Brute force: all labellings of six positions that spell the tokens, two equal ones in a row among them."""
    for tokens in ([1], [1, 1], [2, 1, 1], [3, 2]):
        logits = 2 * torch.randn(6, 4, generator=rng, dtype=torch.float64)
        paths = [
            path
            for path in itertools.product(range(4), repeat=6)
            if [label for label, _ in itertools.groupby(path) if label] == tokens
        ]
        best = max(paths, key=lambda path: sum(logits.log_softmax(-1)[s, label].item() for s, label in enumerate(path)))
        runs = [(label, len(list(group))) for label, group in itertools.groupby(best)]
        ends = np.cumsum([n for _, n in runs]).tolist()
        want = [(end - n, end) for (label, n), end in zip(runs, ends, strict=True) if label]
        assert ctc_spans(logits, tokens, blank_id=0) == want
    assert ctc_spans(logits[:3], [1, 1, 2], blank_id=0) == [] == ctc_spans(logits, [], blank_id=0)


def test_ctc_posteriors_are_shares_of_the_non_blank_mass():
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.6, 0.2], [1.0, 0.0, 0.0], [0.4, 0.2, 0.4], [0.2, 0.0, 0.8]])
    got = ctc_posteriors(probs.log().clamp_min(-100), [1, 2], [(1, 2), (4, 5)], blank_id=0)
    assert got.tolist() == pytest.approx([(0.1 + 0.6) / (0.1 + 0.8), (0.4 + 0.8) / (0.6 + 0.8)])


def test_word_boundaries_are_at_quiet_frames(rng):
    """Three words of known frames, a short dip in one of them, noise; and in the middle where nobody knows loudness."""
    level = torch.full((60,), -60.0)
    spoken = [(4, 15), (20, 33), (33, 50)]  # two of them with nothing between but one quieter frame
    for start, stop in spoken:
        level[start:stop] = 0.0
    level[10], level[33] = -60.0, -20.0
    level += torch.randn(60, generator=rng)
    spikes = [(11, 12), (24, 26), (40, 41)]
    assert boundaries(spikes, 60, level) == [(4, 15), (20, 33), (33, 50)]
    assert boundaries(spikes, 60, 3 * level + 100) == boundaries(spikes, 60, level)  # in any unit
    assert boundaries(spikes, 60, None) == [(0, 18), (18, 33), (33, 60)]


def test_frame_times_are_exact_in_samples():
    """A hop of 10 ms is 220 samples at 22,050 Hz, and a second of frames is 2 ms less."""
    features = FeatureConfig(sample_rate=22_050, n_mels=40)
    n = features.n_frames(30 * 22_050)
    want = [0.0, *((220 * i + (551 - 220) / 2) / 22_050 for i in range(1, n))]
    assert [_seconds(i, n, features) for i in range(n)] == pytest.approx(want)
    assert want[-1] < _seconds(n, n, features) == features.seconds(n)


@pytest.fixture(scope="module")
def translator(text_run) -> td.Translator:
    return td.load(text_run, dtype=torch.float64)


def test_token_scores_add_up_to_the_search_score(translator, transcriber, letters_run):
    """Whatever the task; in beam search every hypothesis has the sum of its own."""
    few = td.SearchConfig(length_ratio=0.2, length_extra=3, alpha=0.0, beam_size=8, n_best=8, split_length=6)
    lines = ["", *ENGLISH[:2], "Print it. Close the green folder, please."]
    got = [outputs for outputs in translator.translate(lines, few, token_scores=True) if outputs[0].tokens]
    sounds = [(sound("red blue"), RATE), (np.concatenate([sound("green", seed=i) for i in range(7)]), RATE)]
    transcripts = transcriber.transcribe(sounds, replace(few, max_seconds=1.0, no_repeat_ngram=4), token_scores=True)
    got += [segment.outputs for transcript in transcripts for segment in transcript.segments]
    generator = td.load(letters_run, dtype=torch.float64)
    beams = td.GenerationConfig(beam_size=3, n=2, max_length=7)
    got += generator.generate(["ROMEO", "All: Sp"], beams, token_scores=True)
    assert len(got) > 6
    for output in itertools.chain.from_iterable(got):
        assert output.token_scores.log_prob == pytest.approx(output.log_prob, abs=1e-4)
        assert len(output.token_scores.tokens) == len(output.token_scores.log_probs) >= len(output.tokens)
        for word in output.words:
            assert 0 < word.confidence <= 1 and word.start is None
        assert [word.text for word in output.words] == output.text.split()
    sampled = generator.generate(["ROMEO"], td.GenerationConfig(max_length=5, n=2), token_scores=True)[0]
    for output in sampled:  # characters: text and tokens are the same
        whole = generator.score(["ROMEO" + output.text])[0]
        torch.testing.assert_close(output.token_scores.log_probs, whole.log_probs[-5:])
        words = [math.exp(p) for p in whole.log_probs[-5:].tolist()]
        if output.text.split() == [output.text]:
            assert output.words[0].confidence == pytest.approx(math.prod(words) ** (1 / 5))


def test_words_of_vectors_and_errors_without_ctc(tmp_path):
    reader = VectorReader(VectorConfig(n_features=20, hop=0.02))
    transcriber = td.load(random_speech_run(tmp_path / "vectors", reader))
    np.save(tmp_path / "a.npy", np.random.default_rng(1).standard_normal((30, 20)).astype(np.float32))
    (got,) = transcriber.words([tmp_path / "a.npy"], ["red blue"])
    assert [word.text for word in got] == ["red", "blue"]
    ids = transcriber.tokenizer.encode(["red blue"])[0][:-1]
    (cut,) = transcriber.words([tmp_path / "a.npy"], [Output("", tokens=ids, finished=False)])
    assert " ".join(word.text for word in cut) == transcriber.tokenizer.decode([ids])[0]
    (short,) = transcriber.words([tmp_path / "a.npy"], ["red " * 40])  # more tokens than positions
    assert {(word.text, word.confidence, word.start) for word in short} == {("red", 0.0, None)} and len(short) == 40
    assert (got[0].start, got[1].stop) == (0.0, pytest.approx(0.6)) and got[0].stop == got[1].start

    directory = random_speech_run(tmp_path / "attention")
    config = replace(load_run(directory).model, ctc=False)
    save_run(directory, replace(load_run(directory), model=config))
    save_weights(directory / "model.safetensors", Transformer(config))
    transcriber = td.load(directory)
    assert (
        isinstance(transcriber.feature_extractor, FeatureExtractor) and transcriber.feature_extractor.config == FEATURES
    )
    for ask in (
        lambda: transcriber.transcribe([(sound("red"), RATE)], word_times=True),
        lambda: transcriber.words([(sound("red"), RATE)], ["red"]),
    ):
        with pytest.raises(ValueError) as error:
            ask()
        assert str(error.value) == (
            "times of words come from a CTC head, or from the alignment_heads of an imported Whisper, but this model "
            "has neither; leave them out, or train with --model.ctc and --ctc-weight 0.5"
        )


def test_word_alignment_follows_attention():
    """By hand: two words of two tokens and one on each side, and an end. The layer that looks at few places is taken."""
    look = [[0.3, 0.3, 0.3, 0.1], [0.1, 0.1, 0.2, 0.6], [0.2, 0.6, 0.1, 0.1], [0.0, 0.0, 0.0, 1.0]]
    vague = [[0.25] * 4] * 4
    spans = [("ab", 0, 2), ("c", 2, 3)], [("x", 0, 1), ("yz", 1, 3)]
    got = word_alignment(torch.tensor([vague, look]), *spans)
    assert (got.source, got.target, str(got)) == (["ab", "c"], ["x", "yz"], "0-0 0-1")
    other = torch.tensor([look, vague])
    other[0, 0] = torch.tensor([0.0, 0.0, 0.9, 0.1])
    assert str(word_alignment(other, *spans)) == "1-0 0-1"
    assert str(got.followed_by(WordAlignment(["d"], ["e"], [(0, 0)]))) == "0-0 0-1 2-2"
    assert str(word_alignment(torch.zeros(1, 1, 1), [], [("x", 0, 1)])) == ""


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (["猫が好き。", "犬も いる", "鳥。"], "猫が好き。犬も いる鳥。"),
        (["我去。", "", "OK.", "你好", "iPhone"], "我去。 OK. 你好 iPhone"),
        (["他说：“我去。”", "“好……”", "走。", "“OK”"], "他说：“我去。”“好……”走。 “OK”"),
        (["고양이.", " 개. "], "고양이. 개."),
        (["A.", "B."], "A. B."),
        ([], ""),
    ],
)
def test_texts_are_joined_by_spaces_except_in_chinese_and_japanese(texts, whole):
    """And an alignment counts the words of the whole text, each of which has one source word."""
    assert (
        joined_texts(texts) == Transcript("a.wav", [Segment(0.0, 1.0, [Output(text)]) for text in texts]).text == whole
    )
    aligned = WordAlignment([], [], [])
    for text in texts:
        words = text.split()
        pairs = [(n, n) for n in range(len(words))]
        aligned = aligned.followed_by(WordAlignment(words, words, pairs))
    assert aligned.target == whole.split()
    assert [target for _, target in aligned.pairs] == list(range(len(whole.split())))


def test_alignments_do_not_depend_on_the_batch(translator):
    """Also where a line is translated by its sentences, whose words are counted on."""
    lines = ["", *ENGLISH[:4], "Print it. Close the green folder, please."]
    config = td.SearchConfig(length_ratio=1.0, length_extra=3, beam_size=2)
    together = translator.translate(lines, config, alignments=True)
    assert together[0][0].alignment is None
    for line, (output,) in list(zip(lines, together, strict=True))[1:]:
        (alone,) = translator.translate([line], config, alignments=True)[0]
        assert alone.alignment == output.alignment
        assert output.alignment.source == line.split() and output.alignment.target == output.text.split()
        assert [target for _, target in output.alignment.pairs] == list(range(len(output.text.split())))
    parts = translator.translate(["Print it.", "Close the green folder, please."], config, alignments=True)
    whole = join_parts(parts, BeamConfig(alpha=0.6))[0].alignment
    first, second = (outputs[0].alignment for outputs in parts)
    assert whole.pairs == [*first.pairs, *((s + 2, t + len(first.target)) for s, t in second.pairs)]


def test_alignments_count_words_before_normalization(translator):
    """By hand: NFKC makes two words of it´s, and four of ﷺ."""
    line, origin = "it´s a ﷺ dog", [0, 0, 1, 2, 2, 2, 2, 3]
    tokenizer = SentencePieceTokenizer.train([*ENGLISH, line], vocab_size=300, normalization="nmt_nfkc")
    config = translator.model.config
    stack = replace(config.encoder, input=Tokens(vocab_size=tokenizer.vocab_size))
    model = Transformer(replace(config, encoder=stack, decoder=stack)).eval()
    search = td.SearchConfig(beam_size=2, length_ratio=0, length_extra=12)
    normal = td.Translator(model, tokenizer, tokenizer, search)
    ((output,),) = normal.translate([line], alignments=True)
    (plain,) = normal.align([line], [output])
    assert output.alignment.pairs == [(origin[i], n) for i, n in plain.words.pairs]
    assert max(i for i, _ in plain.words.pairs) > 0 and len(output.alignment.source) == 4


def test_alignments_count_words_that_the_decoder_merges(translator):
    """By hand: WordPiece's writes no space before punctuation, of which a source may have made words."""
    words = ["Print", ",", "it", ".", "Open"]
    table = {word: i for i, word in enumerate((*SPECIAL, *words))}
    wordpiece = Library(models.WordPiece(table, unk_token="<unk>"))
    wordpiece.pre_tokenizer, wordpiece.decoder = pre_tokenizers.WhitespaceSplit(), decoders.WordPiece()
    wordpiece.add_special_tokens([*SPECIAL])
    tokenizer = JSONTokenizer(wordpiece.to_str().encode())
    search = td.SearchConfig(beam_size=2, length_ratio=0, length_extra=12, no_repeat_ngram=2)
    other = td.Translator(translator.model, tokenizer, translator.tokenizer, search)
    ((output,),) = other.translate([" ".join(words)], alignments=True)
    (plain,) = other.align([" ".join(words)], [output])
    assert plain.words.source == ["Print,", "it.", "Open"] and max(i for i, _ in plain.words.pairs) > 0
    assert output.alignment.source == words
    assert output.alignment.pairs == [([0, 2, 4][i], n) for i, n in plain.words.pairs]


def test_alignment_of_sentences_without_spaces_between_them(translator):
    """By hand: of four pieces the first three are one word; each sentence is aligned as alone."""
    sentences, origin = ["猫が好き。", "犬もいる。", "鳥も 飛ぶ。"], [[0], [0], [0, 1]]
    line = "".join(sentences)
    tokenizer = SentencePieceTokenizer.train([*ENGLISH, line], vocab_size=320)
    stack = replace(translator.model.config.encoder, input=Tokens(vocab_size=tokenizer.vocab_size))
    model = Transformer(replace(translator.model.config, encoder=stack, decoder=stack)).eval()
    search = td.SearchConfig(beam_size=2, length_ratio=0, length_extra=12, split_length=1, max_source_length=10)
    together = td.Translator(model, tokenizer, tokenizer, search)
    want, n = [], 0
    for numbers, ((alone,),) in zip(
        origin, ([*together.translate([s], alignments=True)] for s in sentences), strict=True
    ):
        want += [(numbers[i], n + j) for i, j in alone.alignment.pairs]
        n += len(alone.alignment.target)
    ((output,),) = together.translate([line], alignments=True)
    assert output.alignment.pairs == want and output.alignment.source == ["猫が好き。犬もいる。鳥も", "飛ぶ。"]
    html = translate_markup(together, f"<p>{line[:-4]}<b>{line[-4:]}</b></p>", "html")
    assert re.sub("</?[pb]>", "", html).split() == output.text.split()
