"""Translating from a vocabulary of one's own: what may come out, and that neighbours change nothing."""

import pytest
import torch
from safetensors.torch import save_file

import transduce as td
from tests.runs import ENGLISH, GERMAN, LITTLE, random_run
from transduce.cli.main import main
from transduce.decode.shortlist import FILE, Shortlist, learn_shortlist, save_shortlist

LINES = [*sorted({*ENGLISH}), "Open the photos.", "Did Anna delete the list?"]
SEARCH = {"beam_size": 4, "length_ratio": 0.5, "length_extra": 4, "split_length": 0}


@pytest.fixture
def run(text_run):
    return text_run


@pytest.fixture
def translator(run):
    return td.load_translator(run)


def everything(translator):
    """A table by which every token may become any."""
    size = translator.tokenizer.vocab_size
    return Shortlist(
        torch.arange(size).expand(size, size), torch.tensor([*translator.tokenizer.required("bos_id", "eos_id")])
    )


@pytest.mark.parametrize("beam_size", [1, 4])
def test_with_all_tokens_it_is_the_search_without_one(translator, beam_size):
    want = translator.translate(LINES, **SEARCH | {"beam_size": beam_size})
    translator.shortlist = everything(translator)
    got = translator.translate(LINES, shortlist=True, **SEARCH | {"beam_size": beam_size})
    for one, other in zip(got, want, strict=True):
        assert [each.tokens for each in one] == [each.tokens for each in other]
        assert one[0].log_prob == pytest.approx(other[0].log_prob, rel=1e-4)


@pytest.mark.parametrize("int8", [False, True])
def test_only_what_the_table_holds_comes_out_and_scores_are_those_of_that_vocabulary(run, int8):
    translator = td.load_translator(run, dtype=torch.int8 if int8 else torch.float32)
    translator.shortlist = learn_shortlist(
        translator.source_tokenizer, translator.tokenizer, ENGLISH, GERMAN, n=3, frequent=5
    )
    table, always = translator.shortlist.table, {*translator.shortlist.always.tolist()}
    outputs = translator.translate(LINES, shortlist=True, no_repeat_ngram=2, **SEARCH)
    for ids, (best, *_) in zip(translator.sources(LINES), outputs, strict=True):
        own = always | {*table[ids].flatten().tolist()}
        assert {*best.tokens} <= own and len(own) < translator.tokenizer.vocab_size / 2
    if int8:
        return
    ids, best = translator.sources(LINES)[0], outputs[0][0]
    bos, eos = translator.tokenizer.required("bos_id", "eos_id")
    own = torch.tensor(sorted(always | {*table[ids].flatten().tolist()}))
    logits = translator.model(
        source=torch.tensor([ids]),
        source_lengths=torch.tensor([len(ids)]),
        target_in=torch.tensor([[bos, *best.tokens]]),
    )[0]
    after = [*best.tokens, eos][: len(best.tokens) + best.finished]
    want = sum(logits[i, token] - logits[i, own].logsumexp(-1) for i, token in enumerate(after))
    assert best.log_prob == pytest.approx(float(want), rel=1e-4)


def test_neighbours_change_nothing(translator):
    translator.shortlist = learn_shortlist(
        translator.source_tokenizer, translator.tokenizer, ENGLISH, GERMAN, n=3, frequent=5
    )
    whole = translator.translate(LINES, shortlist=True, **SEARCH)
    for i, line in enumerate(LINES):
        (alone,) = translator.translate([line], shortlist=True, **SEARCH)
        assert alone[0].tokens == whole[i][0].tokens
        assert alone[0].score == pytest.approx(whole[i][0].score, rel=1e-4)
    backwards = translator(LINES[::-1], shortlist=True, batch_tokens=40, **SEARCH)
    assert backwards[::-1] == [each[0].text for each in whole]


def test_the_command_line_makes_it_and_uses_it(tmp_path, capsys):
    run = random_run(tmp_path / "run", model=LITTLE)
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("".join(f"{line}\n" for line in ENGLISH))
    target.write_text("".join(f"{line}\n" for line in GERMAN))
    assert main(["translate", str(run), str(source), "--shortlist"]) == 2
    assert "transduce shortlist RUN SOURCE TARGET makes it" in capsys.readouterr().err
    assert main(["shortlist", str(run), str(source), str(target), "--n", "4", "--frequent", "9"]) == 0
    assert f"{run / FILE}: 4 target tokens for each of 330 source tokens" in capsys.readouterr().out
    assert main(["translate", str(run), str(source), "--shortlist", "--length-ratio", "0", "--length-extra", "4"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ENGLISH)
    assert main(["shortlist", str(run), str(source), str(tmp_path / "no.de")]) == 2
    (tmp_path / "short.de").write_text("Mach.\n")
    assert main(["shortlist", str(run), str(source), str(tmp_path / "short.de")]) == 2
    assert "the same number of lines" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        *({"forbid": ("a",)}, {"suppress": (9,)}, {"suppress_first": (9,)}, {"begin_with": "<s>"}),
        *({"coverage_penalty": 0.2}, {"prefix": ["Mach"] * len(LINES)}),
    ],
)
def test_what_it_does_not_go_with_is_refused(translator, wrong):
    translator.shortlist = everything(translator)
    with pytest.raises(ValueError, match="a shortlist goes with plain search alone"):
        translator.translate(LINES, shortlist=True, **wrong)


def test_a_table_of_another_run_is_refused(run, tmp_path):
    own = random_run(tmp_path, model=LITTLE)
    save_shortlist(own, everything(td.load_translator(run)))
    assert isinstance(td.load_translator(own).shortlist, Shortlist)
    size = 330
    for table, always in (
        (torch.zeros(size, 2, dtype=torch.int64), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.zeros(size - 1, 2, dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.full((size, 2), size, dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.full((size, 2), -1, dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.zeros(size, 2, dtype=torch.int32), torch.tensor([5], dtype=torch.int32)),
    ):
        save_file({"table": table, "always": always}, own / FILE)
        with pytest.raises(ValueError, match=r"int32 target ids for 330 source tokens.*make it again"):
            td.load_translator(own)
