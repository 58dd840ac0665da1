"""What a run begins with that was made before: vectors of pieces that two vocabularies share, and whose tokenizer counts."""

from dataclasses import replace

import pytest
import torch

import transduce as td
from tests.runs import ENGLISH, FEATURES, GERMAN, random_run, random_speech_run, record, sentences
from transduce.data.features import FeatureCache
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.sentencepiece_bpe import SentencePieceTokenizer, train_tokenizer_pair
from transduce.experiment.config import Experiment, SpeechExperiment, with_frames, with_vocabularies
from transduce.experiment.run import Processor, new_model
from transduce.experiment.start import saved_tokenizers, speech_features
from transduce.files import save_weights
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.presets import transformer_tiny
from transduce.model.transformer import Transformer
from transduce.run import Run, load_run, save_run
from transduce.train.trainer import TrainingConfig

OTHER = [line.replace("letter", "telegram").replace("the", "this") for line in ENGLISH]


TRAINING = TrainingConfig()


def made(run, config, start_from=None, source=None, target=None, training=TRAINING):
    """A new model of an experiment that has nothing else."""
    x = Experiment(run=run, model=config, start_from=start_from, training=training, device="cpu")
    return new_model(x, Processor(source=source, target=target))


def padded(config: TransformerConfig, multiple: int) -> TransformerConfig:
    sides = {
        name: replace(stack, input=replace(stack.input, multiple=multiple))
        for name, stack in (("encoder", config.encoder), ("decoder", config.decoder))
    }
    return replace(config, **sides)


def check_rows(new: torch.Tensor, old: torch.Tensor, fresh: torch.Tensor, tokens: list[str], before: list[str]) -> int:
    """Row by row: the vector of the same piece, or that of a new model. Returns how many were kept."""
    kept = 0
    for i, token in enumerate(tokens):
        want = old[before.index(token)] if token in before else fresh[i]
        assert torch.equal(new[i], want), token
        kept += token in before
    assert torch.equal(new[len(tokens) :], fresh[len(tokens) :])  # padding rows
    return kept


@pytest.mark.parametrize(("tie", "multiple"), [("all", 64), ("output", 1), ("none", 64)])
def test_shared_pieces_keep_their_vectors(translator, tmp_path, capsys, tie, multiple):
    """One vocabulary for both sides, whose ids mean other pieces now, in tables that are shared or not, and padded."""
    source = translator
    old_model, before = td.load_model(source), load_run(source).target_tokenizer
    after, _ = train_tokenizer_pair(OTHER, GERMAN, vocab_size=350, joint=True)
    config = with_vocabularies(transformer_tiny(), after.vocab_size, after.vocab_size, joint=True)
    config = replace(padded(config, multiple), tie=tie)
    fresh = made(tmp_path / "run", config)
    model = made(tmp_path / "run", config, source, after, after)
    sides = [each.tokens(range(each.vocab_size)) for each in (after, before)]
    old = old_model.state_dict()
    tables = {"source_input.weight", "target_input.weight", "output"}
    for name, tensor in model.state_dict().items():
        if name in tables:
            kept = check_rows(tensor, old[name], fresh.state_dict()[name], *sides)
        else:
            assert torch.equal(tensor, old[name]), name
    assert 280 < kept < after.vocab_size
    assert f"target: {kept:,} of {after.vocab_size:,} pieces keep their vectors" in capsys.readouterr().out


def test_each_side_keeps_its_own_pieces(tmp_path, capsys):
    source = random_run(tmp_path / "source", joint=False)
    befores = load_run(source)
    afters = train_tokenizer_pair(OTHER, GERMAN[:12], vocab_size=340, joint=False)
    config = with_vocabularies(transformer_tiny(), *(t.vocab_size for t in afters), joint=False)
    fresh = made(tmp_path / "run", config).state_dict()
    model = made(tmp_path / "run", config, source, *afters).state_dict()
    old = td.load_model(source).state_dict()
    said = capsys.readouterr().out
    pairs = (("source", befores.source_tokenizer, afters[0]), ("target", befores.target_tokenizer, afters[1]))
    for side, before, after in pairs:
        name = f"{side}_input.weight"
        tokens = [each.tokens(range(each.vocab_size)) for each in (after, before)]
        kept = check_rows(model[name], old[name], fresh[name], *tokens)
        assert f"{side}: {kept} of {after.vocab_size} pieces keep their vectors" in said


def test_ctc_heads_keep_vectors_and_biases_of_shared_pieces(tmp_path):
    """And what is added to the states for each of them, in a column."""
    source = random_speech_run(tmp_path / "source")
    run = load_run(source)
    run = replace(run, model=replace(run.model, ctc_layers=(1,), ctc_conditioning=True))
    model = Transformer(run.model)
    with torch.no_grad():
        model.ctc.bias.normal_()
    save_run(source, run)
    save_weights(source / "model.safetensors", model)
    weights = model.state_dict()
    after = SentencePieceTokenizer.train([*sentences(30), "yellow violet"], vocab_size=300)
    config = with_frames(run.model, 10, after.vocab_size)
    fresh = made(tmp_path / "run", config).state_dict()
    got = made(tmp_path / "run", config, source, target=after).state_dict()
    tokens = [each.tokens(range(each.vocab_size)) for each in (after, run.target_tokenizer)]
    for name in ("ctc.weight", "ctc.bias", "output"):
        assert check_rows(got[name], weights[name], fresh[name], *tokens) > 260
    columns = (each["ctc_condition.weight"].T for each in (got, weights, fresh))
    assert check_rows(*columns, *tokens) > 260
    assert torch.equal(got["ctc_condition.bias"], weights["ctc_condition.bias"])


@pytest.mark.parametrize("multiple", [1, 64])
def test_the_mask_symbol_keeps_its_vector(tmp_path, multiple):
    """It stands behind the tokens, so its id is another one in a larger vocabulary; an equal one may be padded."""
    before = JSONTokenizer.train(ENGLISH, vocab_size=280)

    def encoder(tokenizer: JSONTokenizer, multiple: int = 1) -> TransformerConfig:
        known = Tokens(vocab_size=tokenizer.vocab_size + 1, multiple=multiple)
        return TransformerConfig(encoder=StackConfig(input=known, n_layers=1), d_model=8, n_heads=2, d_ff=8)

    model = Transformer(encoder(before))
    save_run(tmp_path / "source", Run(model.config, {}, before, before))
    save_weights(tmp_path / "source" / "model.safetensors", model)
    for after in (before, before.with_symbols(["<2de>", "<2fr>"])):
        config = encoder(after, multiple)
        got = made(tmp_path / "run", config, tmp_path / "source", after, after).output
        assert torch.equal(got[after.vocab_size], model.output[before.vocab_size])
        assert torch.equal(got[: before.vocab_size], model.output[: before.vocab_size])
        fresh = made(tmp_path / "run", config).output
        assert torch.equal(got[before.vocab_size : after.vocab_size], fresh[before.vocab_size : after.vocab_size])
        assert torch.equal(got[after.vocab_size + 1 :], fresh[after.vocab_size + 1 :])


def test_precedence_of_tokenizers(translator, tmp_path):
    """The run's own, once it has begun; then that of the files; then that of the run it starts from."""
    start, begun = translator, random_run(tmp_path / "begun", joint=False)
    mine = SentencePieceTokenizer.train(OTHER, vocab_size=300)
    mine.save(tmp_path / "mine.model")
    file, new = tmp_path / "mine.model", tmp_path / "new"
    own = load_run(begun)
    source, target = saved_tokenizers(begun, start, file)
    assert (source.model, target.model) == (own.source_tokenizer.model, own.target_tokenizer.model)
    source, target = saved_tokenizers(new, start, file)
    assert source is target and source.model == mine.model
    source, target = saved_tokenizers(new, start, "byte_bpe")
    assert source is target and source.model == load_run(start).target_tokenizer.model
    source, target = saved_tokenizers(new, None, (begun / "source.model", file))
    assert (source.model, target.model) == (own.source_tokenizer.model, mine.model)
    assert saved_tokenizers(new) is None
    speech = saved_tokenizers(new, random_speech_run(tmp_path / "speech"))
    assert speech[0] is speech[1]  # a translation that starts from it has one vocabulary


def test_symbols_are_added_to_the_start_vocabulary(translator, tmp_path):
    start = translator
    source, target = saved_tokenizers(tmp_path / "new", start, (), "<2de> <2fr>")
    assert source is target and target.vocab_size == load_run(start).target_tokenizer.vocab_size + 2
    assert target.tokens(target.encode(["<2de> Open"])[0])[:2] == ["▁", "<2de>"]
    assert saved_tokenizers(start, start, (), "<2de>")[0].model == load_run(start).target_tokenizer.model  # has begun


def test_tokenizers_that_a_recipe_cannot_use_are_refused(tmp_path):
    """Byte-level BPE has one token that begins and ends a text, and none for CTC's blank, unless one is added."""
    file, new, needs = tmp_path / "tokenizer.json", tmp_path / "new", ("bos_id", "eos_id", "pad_id")
    JSONTokenizer.train(ENGLISH, vocab_size=280).save(file)
    good = tmp_path / "good.model"
    SentencePieceTokenizer.train(ENGLISH, vocab_size=300).save(good)
    with pytest.raises(ValueError) as error:
        saved_tokenizers(new, None, (good, file), needs=needs)
    assert str(error.value) == (
        f"{file}: a model that turns one sequence into another needs a special token for each of bos_id, eos_id, pad_id, "
        "but this JSONTokenizer has none for pad_id (<pad>, [PAD], <|pad|>); add what is missing with --symbols '<pad>', "
        "or name another tokenizer with --tokenizer FILE"
    )
    _, tokenizer = saved_tokenizers(new, None, file, "<pad>", needs=needs)
    assert tokenizer.required(*needs) == (0, 0, 280) and tokenizer.suppressed == (280,)
    assert saved_tokenizers(new, None, file, needs=needs[:2])[1].required("bos_id", "eos_id") == (0, 0)
    with pytest.raises(ValueError) as error:
        saved_tokenizers(tmp_path / "new", None, (file, file, file))
    assert str(error.value) == "tokenizer is one file for both sides, or one for each, but there are 3"


def test_other_features_are_reported_only_for_speech_runs(tmp_path, capsys):
    recordings, features = record(tmp_path / "sound", sentences(2)), replace(FEATURES, normalize="global")
    for start_from in (random_run(tmp_path / "text"), random_speech_run(tmp_path / "speech")):
        x = SpeechExperiment(run=tmp_path / "new", start_from=start_from, features=features, workers=0)
        speech_features(x, recordings, FeatureCache(tmp_path / "cache"))
        assert ("other than in" in capsys.readouterr().out) == (start_from.name == "speech")
