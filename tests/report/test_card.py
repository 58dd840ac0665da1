"""What a run's card says, and when it is written anew."""

import json
import re
from dataclasses import replace

import pytest
import yaml

import transduce as td
from tests.language_runs import language_run
from tests.runs import LITTLE, random_run, random_speech_run
from transduce.cli.main import main
from transduce.report.documents import write_card
from transduce.run import load_run, save_run


def masked(directory):
    run = random_run(directory, model=LITTLE)
    kept = load_run(run)
    save_run(run, replace(kept, model=replace(kept.model, decoder=None, tie="output")))
    return run


@pytest.mark.parametrize(
    ("make", "task", "command"),
    [
        (lambda path: random_run(path, model=LITTLE), "translation", "translation"),
        (random_speech_run, "automatic-speech-recognition", "speech-to-text"),
        (language_run, "text-generation", "language-model"),
        (masked, "fill-mask", "masked-language-model"),
    ],
    ids=["translation", "speech", "language", "masked"],
)
def test_model_card_has_the_hub_header_and_all_of_describe(tmp_path, make, task, command, capsys):
    run = make(tmp_path / "run")
    plain = json.loads((run / "config.json").read_text())
    corpus = {"data": "/home/anna/texts", "source": "no", "target": "de", "train": ["/home/anna/a.txt"], "valid": ""}
    plain["experiment"] |= {"corpus": corpus, "data": "0123abcd", "decoding": {"split_length": 17, "max_seconds": 9.5}}
    plain["experiment"]["decoding"] |= {"words": "known"}
    (run / "config.json").write_text(json.dumps(plain))
    score = {"search": "greedy", "measure": "bleu", "value": 4.5, "score": "BLEU 4.50 [3.25, 5.75] sig"}
    (run / "test.json").write_text(json.dumps([score]))
    (run / "metrics.jsonl").write_text('{"kind": "valid", "update": 10, "bleu": 3.25}\n')
    card = write_card(run).read_text()
    header = yaml.safe_load(re.match(r"---\n(.*?)\n---\n", card, flags=re.DOTALL)[1])
    assert header == {
        "library_name": "transduce", "pipeline_tag": task, "language": ["no", "de"], "tags": ["transduce"]
    }  # fmt: skip
    assert f"transduce train {command} --config config.json" in card
    for line in ("test, greedy: BLEU 4.50 [3.25, 5.75] sig", "last validation: update 10, bleu 3.25"):
        assert f"\n- {line}\n" in card
    if task != "fill-mask":  # its weights are those of a translator
        assert f": {sum(p.numel() for p in td.load_model(run).parameters()):,} parameters" in card
        assert main(["describe", str(run)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert all(f"\n- {line}\n" in card for line in lines if re.match("test|last|source|target|input", line))
    assert "\n- corpus.data: texts\n- corpus.source: no\n" in card and "\n- corpus.train: a.txt\n" in card
    assert ("only writes the words of its lexicon.txt" in card) == (command == "speech-to-text")
    assert "/home" not in card and str(tmp_path) not in card and "\n- data: 0123abcd\n" in card
    assert ("at most 17 tokens" in card, "at most 9.5 s" in card) == (
        task != "automatic-speech-recognition",
        task != "translation",
    )


def test_model_card_is_updated_until_edited_by_hand(tmp_path):
    run = random_run(tmp_path / "run", model=LITTLE)
    assert "None were measured." in write_card(run).read_text()
    (run / "validation.json").write_text('{"loss": 1.25}')
    card = write_card(run).read_text()
    assert "\n- validation: loss 1.25\n" in card
    mine = card.replace("# license: ", "license: mit  # ")
    (run / "MODEL_CARD.md").write_text(mine)
    (run / "validation.json").write_text('{"loss": 0.75}')
    assert write_card(run).read_text() == mine
    (run / "MODEL_CARD.md").unlink()
    assert "loss 0.75" in write_card(run).read_text()
