"""A run goes to the hub and comes back: published, named hub:USER/NAME everywhere, and read from the cache."""

import io
import json
import shutil
import sys
from dataclasses import replace

import huggingface_hub
import pytest
import yaml
from huggingface_hub import constants

import transduce as td
from recipes.translation import SETTINGS
from tests.hub import TOKEN, Hub, Repository, serving
from tests.runs import ENGLISH, LITTLE, random_run
from transduce.cli.main import main
from transduce.experiment.command import choose
from transduce.experiment.run import Processor, new_model
from transduce.experiment.start import saved_tokenizers
from transduce.run import PUBLISHED, load_run

LINES = [ENGLISH[5], ENGLISH[0]]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # the library's own


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A translator with what else a training leaves in its directory."""
    directory = random_run(tmp_path_factory.mktemp("publish") / "run", model=LITTLE)
    (directory / "checkpoints" / "00000010").mkdir(parents=True)
    for name in ("checkpoints/00000010/optimizer.safetensors", "test.greedy.txt", ".lock"):
        (directory / name).write_text("private")
    score = {"search": "greedy", "measure": "bleu", "value": 4.5, "score": "BLEU 4.50 [3.25, 5.75] sig"}
    (directory / "test.json").write_text(json.dumps([score]))
    (directory / "metrics.jsonl").write_text('{"kind": "valid", "update": 10, "bleu": 3.25}\n')
    return directory


def point_at(url, monkeypatch):
    """What HF_ENDPOINT does for a new process: the library reads it once, into constants."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub of its own with an empty cache, and a token."""
    got = Hub()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # which other tests ask for
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with serving(got) as url:
        point_at(url, monkeypatch)
        yield got
    huggingface_hub.close_session()


def test_a_published_run_gives_the_same_translations(run, hub, capsys, monkeypatch):
    (run / "report.html").write_text("stays here")
    assert main(["publish", str(run), "anna/tiny"]) == 0
    out, files = capsys.readouterr().out, hub.repositories["anna/tiny"].files
    names = {"config.json", "model.safetensors", "tokenizer.model", "test.json", "metrics.jsonl", "README.md"}
    assert set(files) == names
    assert {name: files[name] for name in names - {"README.md"}} == {
        name: (run / name).read_bytes() for name in names - {"README.md"}
    }
    assert files["README.md"] == (run / "MODEL_CARD.md").read_bytes()
    size = (run / "model.safetensors").stat().st_size
    assert f"  model.safetensors  {size / 1e6:.1f} MB\n" in out
    wanted = td.load(run)(LINES)
    assert td.load("hub:anna/tiny")(LINES) == wanted
    for name in ("hub:anna/tiny", f"{run},hub:anna/tiny@main"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(LINES).encode())))
        assert main(["translate", name, "--greedy"]) == 0
        assert capsys.readouterr().out.splitlines() == td.load(run)(LINES, beam_size=1), name
    assert all(
        a.equal(b) for a, b in zip(*(td.load_model(x).parameters() for x in (run, "hub:anna/tiny")), strict=True)
    )


def test_benchmark_scores_are_written_in_the_hubs_format(run, hub, capsys, tmp_path):
    def score(search, measure, value, group=""):
        return {"search": search, "measure": measure, "value": value, "score": f"{measure} {value} sig", "group": group}

    copy = shutil.copytree(run, tmp_path / "copy")
    scores = [score("greedy", "bleu", 4.5), score("beam5", "bleu", 5.256), score("beam5", "chrf", 30.0)]
    (copy / "test.json").write_text(json.dumps([*scores, score("beam5", "bleu", 9.0, group="en-de")]))
    assert main(["publish", str(copy), "anna/tiny", "--benchmark", "anna/captions/flickr"]) == 0
    text = hub.repositories["anna/tiny"].files[".eval_results/transduce.yaml"]
    (entry,) = huggingface_hub.parse_eval_result_entries(yaml.safe_load(text))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("anna/captions", "flickr", 5.26)
    assert entry.notes == "beam5: bleu 5.256 sig"
    capsys.readouterr()
    for name in ("captions", "anna/captions", "a/b/c/d", "/b/c", "a/b/"):
        assert main(["publish", str(copy), "anna/tiny", "--benchmark", name]) == 2
        assert "a benchmark is USER/DATASET/TASK" in capsys.readouterr().err
    (copy / "test.json").unlink()
    assert main(["publish", str(copy), "anna/tiny", "--benchmark", "a/b/c"]) == 2
    assert "test.json" in capsys.readouterr().err


def test_only_files_of_a_run_are_downloaded_and_then_cached(run, hub, monkeypatch, tmp_path):
    there = hub.repositories["anna/tiny"] = Repository(private=False)
    whole = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    commit = there.write(
        "v1", {**whole, "optimizer.pt": b"pickle", "checkpoints/model.safetensors": b"", "run.py": b""}
    )
    monkeypatch.delenv("HF_TOKEN")
    wanted = td.load(f"hub:anna/tiny@{commit}")(LINES)
    assert td.load("hub:anna/tiny@v1")(LINES) == wanted == td.load(run)(LINES)
    fetched = {each.rpartition("/")[2] for each in hub.asked if each.startswith("GET") and "/resolve/" in each}
    assert fetched == set(whole) & {*PUBLISHED}
    point_at("http://127.0.0.1:9", monkeypatch)
    assert td.load("hub:anna/tiny@v1")(LINES) == wanted


def test_a_training_starts_from_a_published_run(run, hub, monkeypatch, tmp_path):
    whole = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    hub.repositories["anna/tiny"] = Repository(private=False)
    hub.repositories["anna/tiny"].write("main", whole)
    x = choose(SETTINGS, ["--start-from", "hub:anna/tiny", "--run", str(tmp_path / "new")], default="commands")
    assert (x.model.d_model, str(x.start_from)) == (LITTLE.d_model, "hub:anna/tiny")  # so that it resumes anywhere
    source, target = saved_tokenizers(x.run, x.start_from)
    x = replace(x, model=load_run(run).model, device="cpu")
    model = new_model(x, Processor(source=source, target=target))
    assert all(a.equal(b) for a, b in zip(model.parameters(), td.load_model(run).parameters(), strict=True))


@pytest.mark.long
def test_publishing_again_keeps_a_card_edited_on_the_hub(run, hub, tmp_path, capsys):
    assert main(["publish", str(run), "anna/tiny"]) == 0
    there = hub.repositories["anna/tiny"]
    mine = there.files["README.md"].replace(b"# license:", b"license: mit #")
    there.write("main", {**there.files, "README.md": mine, "source.model": b"stale", "notes.txt": b"kept"})
    other = random_run(tmp_path / "other", model=LITTLE, seed=4)
    assert main(["publish", str(other), "anna/tiny"]) == 0
    assert there.files["README.md"] == mine and there.files["notes.txt"] == b"kept"
    assert "source.model" not in there.files and "test.json" not in there.files
    assert there.files["model.safetensors"] == (other / "model.safetensors").read_bytes()
    assert "  README.md was edited on the hub, and is kept\n" in capsys.readouterr().out
    (other / "MODEL_CARD.md").write_text("---\nlicense: mit\n---\nby hand\n")
    assert main(["publish", str(other), "anna/tiny"]) == 0
    assert there.files["README.md"] == (other / "MODEL_CARD.md").read_bytes() == b"---\nlicense: mit\n---\nby hand\n"


@pytest.mark.long
def test_a_private_branch_needs_a_token(run, hub, monkeypatch, capsys):
    assert main(["publish", str(run), "anna/secret@trial", "--private"]) == 0
    there = hub.repositories["anna/secret"]
    assert there.private and there.files == {} and set(there.commits[there.branches["trial"]]) > {"config.json"}
    assert main(["describe", "hub:anna/secret@trial"]) == 0
    assert "test, greedy: BLEU 4.50 [3.25, 5.75] sig" in capsys.readouterr().out
    monkeypatch.delenv("HF_TOKEN")
    shutil.rmtree(constants.HF_HUB_CACHE)
    with pytest.raises(ValueError, match=r"hub:anna/secret@trial must be a repository that you may read"):
        td.load("hub:anna/secret@trial")


def error(words, capsys):
    assert main(words) == 2
    return capsys.readouterr().err.removeprefix("transduce: ").rstrip("\n")


def test_publishing_errors_leave_the_hub_unchanged(run, hub, monkeypatch, capsys, tmp_path):
    unfinished = shutil.copytree(run, tmp_path / "unfinished")
    (unfinished / "model.safetensors").unlink()
    assert error(["publish", str(unfinished), "anna/tiny"], capsys) == (
        f"a finished run has model.safetensors, but {unfinished} has none; finish its training, or average its "
        f"checkpoints: transduce average {unfinished} --best 1"
    )
    assert error(["publish", str(run), "tiny"], capsys) == (
        "a run on the hub is named hub:USER/NAME, or hub:USER/NAME@REVISION, but this is 'tiny'"
    )
    with monkeypatch.context() as without:
        without.delenv("HF_TOKEN")
        assert error(["publish", str(run), "anna/tiny"], capsys) == (
            "publishing needs a token with write access, but there is none; run hf auth login, or set HF_TOKEN"
        )
    assert hub.asked == []
    hub.repositories["anna/tiny"] = Repository(private=False)
    assert error(["publish", str(run), "anna/tiny", "--private"], capsys) == (
        f"{hub.url}/anna/tiny is public already, so --private has no effect; make it private in its settings, or "
        "name another repository"
    )
    hub.full = True
    message = error(["publish", str(run), "anna/tiny"], capsys)
    assert message.endswith(f"hub:anna/tiny: {hub.url} refused the request, or cannot be reached: Error while uploading "
                         "'model.safetensors' to the Hub.")  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    message = error(["publish", str(run), "anna/new"], capsys)
    assert (
        f"hub:anna/new: {hub.url} refused the request, or cannot be reached: Client error '401 Unauthorized'" in message
    )
    assert hub.repositories["anna/tiny"].files == {} and "anna/new" not in hub.repositories


def test_missing_hub_runs_are_reported_with_advice(run, hub, monkeypatch, capsys):
    hub.repositories["anna/other"] = Repository(private=False)
    hub.repositories["anna/other"].write(
        "main", {"config.json": b'{"model_type": "gpt2"}', "model.safetensors": b"big"}
    )
    assert error(["translate", "hub:anna/none"], capsys) == (
        f"hub:anna/none must be a repository that you may read, but {hub.url} shows you none of this name; check "
        "the name, or log in by hf auth login"
    )
    assert error(["translate", "hub:anna/other@v2"], capsys) == (
        f"hub:anna/other@v2 has no such revision at {hub.url}; name a branch, a tag or a commit"
    )
    assert error(["translate", f"{run},hub:anna/other"], capsys) == (
        "hub:anna/other must be a run that transduce publish wrote, but it is not; models of transformers are downloaded "
        "and imported: transduce import HF_DIRECTORY RUN"
    )
    assert not any("resolve" in each and "safetensors" in each for each in hub.asked)
    point_at("http://127.0.0.1:9", monkeypatch)
    assert error(["score", "perplexity", "hub:anna/none", __file__], capsys) == (
        "hub:anna/none is not completely in the cache, and http://127.0.0.1:9 cannot be reached; try again with a "
        "network, and without HF_HUB_OFFLINE"
    )
    monkeypatch.setattr("transduce.errors.find_spec", lambda name: None)
    assert error(["describe", "hub:anna/other"], capsys) == (
        "hub:anna/other needs the library huggingface_hub, but it is not installed; in a clone of transduce: "
        "pip install '.[hub]'"
    )
