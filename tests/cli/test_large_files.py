"""Large files: in chunks by several processes, or in parts by several machines; the lines are those of one process."""

import fcntl
import json
import os
import re
import shutil
import sys
import threading
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import torch

import transduce as td
from tests.runs import ENGLISH, LITTLE, random_run, random_speech_run, record, sentences
from transduce.cli import jobs
from transduce.cli.common import Columns, Lines, Machine
from transduce.cli.jobs import Job, default_workers, split_chunks
from transduce.cli.large_files import OutputOptions, Part, carry_out
from transduce.cli.main import main
from transduce.cli.translate import Translation, TranslationOutput
from transduce.device import default_device
from transduce.errors import InputError

LINES = [ENGLISH[0], "", *ENGLISH[1:6], ENGLISH[2].upper(), "Print", ENGLISH[3] * 3, "Anna"]
PLAIN = {"settings": {}, "output": TranslationOutput(), "columns": Columns()}
CPU = ["--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run of each kind; a text with a line that is not UTF-8; sound with a file that is none."""
    folder = tmp_path_factory.mktemp("jobs")
    for directory in (random_run(folder / "text", model=LITTLE), random_speech_run(folder / "speech")):
        config = json.loads((directory / "config.json").read_text())
        config["experiment"]["decoding"] = {"beam_size": 3, "length_ratio": 0.0, "length_extra": 4}
        (directory / "config.json").write_text(json.dumps(config))
    raw = [line.encode() for line in LINES]
    (folder / "in").write_bytes(b"\n".join([*raw[:4], b"b\xe4d", *raw[4:]]) + b"\n")
    record(folder, sentences(7))
    (folder / "a03.wav").write_text("no sound")
    texts = [line.encode() for line in (*LINES[5:], *LINES[:6])]
    (folder / "given").write_bytes(b"\n".join([texts[0], b"b\xe4d", *texts[2:]]) + b"\n")
    return folder


COMMANDS = {
    "translate": ["translate", "text", "in", "--n-best", "2", "--scores", "--glossary-bonus", "inf", *CPU],
    "transcribe": ["transcribe", "speech", "a.tsv", "--format", "tsv", *CPU],
    "likelihood": ["score", "likelihood", "text", "in", "given", "--format", "json", *CPU],
}
BAD = {"translate": 1, "transcribe": 1, "likelihood": 2}
FAILS = {name: min(1, n) for name, n in BAD.items()}


@pytest.fixture
def small_chunks(monkeypatch, folder):
    """Chunks of two lines, two files."""
    monkeypatch.chdir(folder)
    size = (folder / "a00.wav").stat().st_size
    for name, chunk in (
        ("translate:Translation", 2),
        ("transcribe:Transcription", 2 * size),
        ("likelihood:Likelihood", 2),
    ):
        module, kind = name.split(":")
        monkeypatch.setattr(f"transduce.cli.{module}.{kind}.CHUNK", chunk)


def run(*arguments: object) -> int:
    try:
        return main([str(each) for each in arguments])
    except SystemExit as stop:
        return stop.code


def own_lines(said: str) -> list[str]:
    """Without warnings, which logging prints as the tests want it."""
    return [line for line in said.splitlines() if line.startswith("transduce: ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_merged_parts_equal_the_output_of_one_process(folder, small_chunks, tmp_path, capsys, command):
    """Whatever the chunks: standard output, a file, and parts have the same bytes."""
    assert run(*COMMANDS[command]) == FAILS[command]
    want, err = capsys.readouterr()
    assert run(*COMMANDS[command], "--output", tmp_path / "whole") == FAILS[command]
    assert (tmp_path / "whole").read_text() == want and capsys.readouterr().err == err
    if command == "translate":
        assert want.count("\n") == 2 * (len(LINES) + 1)
        got = td.load(folder / "text").translate([*LINES[:4], "", *LINES[4:]], n_best=2)
        assert [row.split("\t")[1] for row in want.splitlines()] == [each.text for some in got for each in some]
    for i in (2, 1, 3):
        with suppress(FileNotFoundError):
            (tmp_path / "out").unlink()
        run(*COMMANDS[command], "--output", tmp_path / "out", "--part", f"{i}/3")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"out.part-0000{i}-of-00003{end}" for i in (1, 2, 3) for end in ("", ".progress")),
        "whole",
    ]
    capsys.readouterr()
    assert run("merge", tmp_path / "out") == FAILS[command]
    assert (tmp_path / "out").read_text() == want
    n = 7 if command == "transcribe" else 12
    assert (
        own_lines(capsys.readouterr().err)
        == [f"transduce: {BAD[command]} of {n} inputs could not be used"] * FAILS[command]
    )


def stopped(monkeypatch, after: int, module: str = "translate") -> list[int]:
    """From now on, Ctrl-C comes after so many chunks; the list grows with every chunk that is begun."""
    begun, inside = [], jobs.Rows

    def rows(*arguments):
        begun.append(1)
        if len(begun) > after:
            raise KeyboardInterrupt
        return inside(*arguments)

    monkeypatch.setattr(f"transduce.cli.{module}.Rows", rows)
    return begun


def test_a_warning_of_every_chunk_is_shown_once(folder, small_chunks, capsys, caplog):
    assert run(*COMMANDS["transcribe"], "--max-seconds", "30") == 1
    assert sum("segments of up to 30 s" in record.getMessage() for record in caplog.records) == 1


def test_the_same_command_resumes_an_interrupted_output(folder, small_chunks, tmp_path, monkeypatch, capsys):
    command = [*COMMANDS["translate"], "--output", tmp_path / "out"]
    (tmp_path / "out").write_text("before\n")
    with monkeypatch.context() as patch:
        stopped(patch, 4)
        assert run(*command) == 130
    kept = tmp_path / "out.unfinished"
    assert capsys.readouterr().err.endswith(
        f"8 of 12 inputs are done, in {kept}; the same command resumes from there\ntransduce: stopped\n"
    )
    assert (tmp_path / "out").read_text() == "before\n" and len(kept.read_bytes().splitlines()) == 2 * 8
    with kept.open("ab") as file:  # a crash right behind the next rows
        file.write(b"torn")
    for name in ("out.unfinished", "out.unfinished.progress"):
        shutil.copy(tmp_path / name, tmp_path / f"copy of {name}")
    with monkeypatch.context() as patch:
        begun = stopped(patch, 100)
        assert run(*command) == 1
    assert len(begun) == 2 and not list(tmp_path.glob("out.unfinished*"))
    err = capsys.readouterr().err
    assert f"8 of 12 inputs are done, in {kept}\n" in err and "1 of 12 lines could not be translated" in err
    whole = (tmp_path / "out").read_text()
    assert run(*COMMANDS["translate"]) == 1 and capsys.readouterr().out == whole
    for name in ("out.unfinished", "out.unfinished.progress"):
        shutil.copy(tmp_path / f"copy of {name}", tmp_path / name)
    for options, setting in ((["--alpha", "0"], "settings.alpha"), (["--batch-tokens", "64"], "settings.batch_tokens")):
        with monkeypatch.context() as patch:
            begun = stopped(patch, 100)
            assert run(*command, *options) == (2 if setting == "settings.alpha" else 1)
        assert len(begun) == (0 if setting == "settings.alpha" else 2)
    err = capsys.readouterr().err
    assert (
        "transduce: an output must be made with the same input and settings from beginning to end, but "
        f"{kept} was begun with others: settings.alpha: absent -> 0.0; remove it and out.unfinished.progress, or name "
        "another --output\n"
    ) in err


def test_a_rerun_after_a_crash_between_output_and_cleanup(folder, small_chunks, tmp_path, monkeypatch):
    command = [*COMMANDS["translate"], "--output", tmp_path / "out"]
    progress = tmp_path / "out.unfinished.progress"

    unlink = Path.unlink

    def killed(path, **options):
        if path == progress:
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        assert run(*command) == 130
    whole = (tmp_path / "out").read_text()
    assert progress.exists()
    assert run(*command) == 1
    assert (tmp_path / "out").read_text() == whole and not progress.exists()


@pytest.mark.parametrize("command", ["transcribe", "likelihood"])
def test_resuming_with_changed_audio_is_refused(small_chunks, tmp_path, monkeypatch, capsys, command):
    """In a file of the same name and length."""
    record(tmp_path, sentences(7))
    random_speech_run(tmp_path / "speech")
    (tmp_path / "given").write_text("the\n" * 7)
    monkeypatch.chdir(tmp_path)
    words = {
        "transcribe": COMMANDS["transcribe"],
        "likelihood": ["score", "likelihood", "speech", "a.tsv", "given", *CPU],
    }
    with monkeypatch.context() as patch:
        stopped(patch, 2, command)
        assert run(*words[command], "--output", "out") == 130
    first = tmp_path / "a00.wav"
    raw = first.read_bytes()
    first.write_bytes(raw[:-8] + bytes(8))
    assert run(*words[command], "--output", "out") == 2
    assert "out.unfinished was begun with others: inputs: " in capsys.readouterr().err


def test_ctrl_c_reports_how_many_inputs_are_done(folder, small_chunks, tmp_path, monkeypatch, capsys):
    for after, options, kept in (
        (0, ["--output", tmp_path / "out"], "transduce: 0 of 12 inputs are done\n"),
        (0, [], ""),
        (4, [], "transduce: 8 inputs are done, and their lines are complete\n"),
    ):
        with monkeypatch.context() as patch:
            stopped(patch, after)
            assert run(*COMMANDS["translate"], *options) == 130
        out, err = capsys.readouterr()
        assert err.endswith(f"{kept}transduce: stopped\n") and len(out.splitlines()) == 4 * after
        assert kept or "inputs are done" not in err
    assert not list(tmp_path.glob("out*"))


def test_interrupted_scoring_resumes(folder, small_chunks, tmp_path, monkeypatch, capsys):
    assert run(*COMMANDS["likelihood"]) == 1
    want = capsys.readouterr().out
    again = [*COMMANDS["likelihood"], "--output", tmp_path / "out"]
    with monkeypatch.context() as patch:
        stopped(patch, 2, "likelihood")
        assert run(*again) == 130
    with monkeypatch.context() as patch:
        begun = stopped(patch, 100, "likelihood")
        assert run(*again) == 1
    assert len(begun) == 6 - 2 and (tmp_path / "out").read_text() == want


def test_scores_equal_those_of_single_pairs_and_bad_lines_have_none(folder, small_chunks, capsys):
    """Against the score of each pair alone."""
    assert run(*COMMANDS["likelihood"]) == 1
    out, err = capsys.readouterr()
    texts, translator = [*LINES[5:], *LINES[:6]], td.load_translator(folder / "text")
    pairs = list(zip([*LINES[:4], None, *LINES[4:]], [texts[0], None, *texts[2:]], strict=True))
    for row, (line, text) in zip(map(json.loads, out.splitlines()), pairs, strict=True):
        if line is None or text is None:
            assert row["log_prob"] is None and "must be UTF-8" in row["error"]
        else:
            (alone,) = translator.score([line], [text])
            assert row["log_prob"] == pytest.approx(alone.log_prob, rel=1e-5)
    assert [said.split(", byte")[0] for said in own_lines(err)] == [
        "transduce: line 2: text must be UTF-8, but given, line 2",
        "transduce: line 5: text must be UTF-8, but in, line 5",
        "transduce: 2 of 12 lines could not be scored",
    ]


def test_unreadable_audio_has_no_score(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    Path("said").write_text("".join(f"{text}\n" for text in sentences(7)))
    assert run("score", "likelihood", "speech", "a.tsv", "said", *CPU) == 1
    out, err = capsys.readouterr()
    assert [i for i, row in enumerate(out.splitlines()) if not row] == [3] and out.count("\n") == 7
    assert own_lines(err)[0].startswith("transduce: line 4: ") and "a03.wav" in own_lines(err)[0]


@dataclass(frozen=True, kw_only=True)
class Echo(Job):
    """Lines as they are."""

    UNIT = "line"
    CHUNK = 500

    def load(self):
        return None

    def rows(self, task, start, items, progress):
        return jobs.Rows("".join(f"{item}\n" for item in items))


def test_inputs_that_change_while_they_are_read_are_refused(folder, tmp_path, monkeypatch, capsys):
    (path := tmp_path / "in").write_text("a\nb\n")

    class Changing(Echo):
        def load(self):
            path.write_text("a\nc\n")
            return super().load()

    job = Changing(run=folder / "text", machine=Machine(device="cpu"))
    monkeypatch.setattr(Echo, "CHUNK", 1)
    with pytest.raises(InputError) as refused:
        carry_out(job, Lines(path), OutputOptions(output=tmp_path / "out", workers=1), [path])
    assert re.fullmatch(
        "an output must be made with the same input and run from beginning to end, but this changed meanwhile: inputs: "
        "[0-9a-f]{64} -> [0-9a-f]{64}; run the same command again",
        str(refused.value),
    )
    assert not (tmp_path / "out").exists()
    carry_out(job, Lines(path), OutputOptions(output=tmp_path / "out", workers=1), [path])
    assert (tmp_path / "out").read_text() == "a\nc\n"


@pytest.mark.parametrize("output", [None, "out"])
def test_memory_does_not_grow_with_the_input(folder, tmp_path, monkeypatch, capsys, output):
    """Of 4,000 lines and of 12,000 it is the same, give or take what a chunk of 500 has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", (tmp_path / "printed").open("w"))
    job, peaks = Echo(run=folder / "text", machine=Machine(device="cpu")), []
    for n in (500, 4000, 12_000):
        Path("in").write_text("".join(f"line {i} of many lines\n" for i in range(n)))
        tracemalloc.start()
        carry_out(job, Lines(Path("in")), OutputOptions(output=output and Path(output), workers=1), [Path("in")])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert output is None or Path(output).read_bytes() == Path("in").read_bytes()
    sys.stdout.close()
    assert peaks[2] < peaks[1] + 100_000


def test_pipes_are_read_once(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    (usual := tmp_path / "usual").write_text("b\n")
    writer = threading.Thread(target=pipe.write_text, args=("x\ny",))
    writer.start()
    lines = Lines(pipe, usual, pipe)
    assert [list(lines) for _ in range(3)] == [["x", "y", "b", "x", "y"]] * 3
    writer.join()


def test_many_errors_of_one_kind_are_counted(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (tmp_path / "bad").write_bytes(b"b\xe4d\nb\xf6d\nb\xfcd\n" * 33 + b"good\n")
    assert run("translate", "text", tmp_path / "bad", "--greedy", *CPU) == 1
    out, err = capsys.readouterr()
    lines = own_lines(err)
    assert out.count("\n") == 100 and len(lines) == 7
    assert [f"line {i}, byte 2" in lines[i - 1] for i in range(1, 6)] == [True] * 5
    assert lines[5].startswith("transduce: 94 more of this kind, the last: ") and "line 99, byte 2" in lines[5]
    assert lines[6] == "transduce: 99 of 100 lines could not be translated"


def test_many_warnings_of_one_kind_are_counted(folder, tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(folder)
    (tmp_path / "long").write_text(f"{ENGLISH[0]} {ENGLISH[1]}\n" * 20)
    assert run("translate", "text", tmp_path / "long", "--greedy", "--max-source-length", "8", *CPU) == 0
    assert [record.getMessage().split(" ")[:2] for record in caplog.records] == [["line", str(i)] for i in range(1, 6)]
    err = own_lines(capsys.readouterr().err)
    assert len(err) == 1 and err[0].startswith("transduce: 15 more of this kind, the last: line 20 ")


def test_two_processes_cannot_write_the_same_output(folder, small_chunks, tmp_path, capsys):
    command = [*COMMANDS["translate"], "--output", tmp_path / "out"]
    kept = tmp_path / "out.unfinished"
    with kept.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert run(*command) == 2
    assert capsys.readouterr().err == (
        f"transduce: an output is made by one process at a time, but another one writes {kept}; wait for it or stop it, "
        "or name another --output\n"
    )
    assert run(*command) == 1 and (tmp_path / "out").exists() and not kept.exists()


def test_a_finished_part_is_kept_and_other_settings_are_refused(folder, small_chunks, tmp_path, monkeypatch, capsys):
    for name in ("text", "speech"):
        shutil.copytree(folder / name, tmp_path / name)
    for name in ("in", *(f"a0{i}.wav" for i in range(7)), "a.tsv"):
        shutil.copy(folder / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    one = [*COMMANDS["translate"], "--output", "out", "--part", "1/2"]
    file = Path("out.part-00001-of-00002")
    assert run(*one) == 1 == run(*one)
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"transduce: {file} is finished",
        "transduce: 1 of 6 lines could not be translated",
    ]
    before = file.read_bytes()
    for options in (["--alpha", "0.25"], ["--beam-size", "4"]):
        assert run(*one, *options) == 2
    config = Path("text/config.json")
    config.write_text(config.read_text().replace('"seed": 3', '"seed": 4'))
    assert run(*one) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "from beginning to end" in line]
    assert [line.split("was begun with others: ")[1].split(": ")[0] for line in errors] == [
        "settings.alpha",
        "settings.beam_size",
        "run",
    ]
    assert file.read_bytes() == before

    two = [*COMMANDS["transcribe"], "--output", "said", "--part"]
    assert (run(*two, "1/2"), run(*two, "2/2")) == (0, 1)
    shutil.copy("a02.wav", "a03.wav")  # fetched again
    assert (run(*two, "1/2"), run(*two, "2/2")) == (2, 2)
    assert "was begun with others: inputs: " in capsys.readouterr().err
    for path in Path().glob("said*"):
        path.unlink()
    assert (run(*two, "1/2"), run(*two, "2/2"), run("merge", "said")) == (0, 0, 0)
    rows = [row.split("\t") for row in Path("said").read_text().splitlines()]
    assert [Path(row[0]).name for row in rows] == ["audio", *(f"a0{i}.wav" for i in range(7))]


def test_more_parts_than_recordings_have_one_header(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["transcribe", "speech", "a00.wav", "a01.wav", "--format", "tsv", "--output"]
    assert run(*words, tmp_path / "whole") == 0
    assert [run(*words, tmp_path / "out", "--part", f"{i}/4") for i in (1, 2, 3, 4)] == [0] * 4
    assert run("merge", tmp_path / "out") == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_merge_refuses_incomplete_parts_and_parts_of_other_jobs(folder, small_chunks, tmp_path, monkeypatch, capsys):
    command, out = COMMANDS["translate"], tmp_path / "out"

    def refusal() -> str:
        capsys.readouterr()
        assert run("merge", out) == 2 and not out.exists()
        return capsys.readouterr().err.removeprefix("transduce: ")

    assert refusal().startswith(f"merge joins files such as out.part-00001-of-00004, but there is none in {tmp_path}; ")
    run(*command, "--output", out, "--part", "1/3")
    assert refusal() == (
        f"merge needs all 3 parts of {out}, but these are missing: 2, 3; run the same command for them (--part I/N)\n"
    )
    first, second = Part(1, 3).file(out), Part(2, 3).file(out)
    run(*command, "--alpha", "0.5", "--output", out, "--part", "2/3")
    assert refusal() == (
        f"parts must belong to one job, but {second} and {first} do not: settings.alpha: absent -> 0.5; "
        "remove those of another job\n"
    )
    second.unlink()
    assert refusal().startswith(f"merge needs all 3 parts of {out}, but these are missing: 2, 3; ")
    second.write_text("Mach den alten Brief auf.\n")
    progress = second.with_name(f"{second.name}.progress")
    progress.write_text("{}")
    assert refusal().startswith(f"{progress} does not describe a Done: ")
    progress.unlink()
    assert refusal() == f"{progress} does not exist\n"
    first_progress = first.with_name(f"{first.name}.progress")
    shutil.copy(first_progress, progress)
    shutil.copy(first, second)
    assert "parts must belong" not in refusal()
    second.write_bytes(first.read_bytes()[:-1])
    assert refusal() == (
        f"{second} must have the rows of 4 inputs, but it has those of 4, or was cut; copy it again, or run the same "
        "command for it\n"
    )


def test_invalid_part_and_output_options_are_refused(folder, small_chunks, tmp_path, capsys):
    command = COMMANDS["translate"]
    assert run(*command, "--part", "3/2") == run(*command, "--part", "3/2", "--output", tmp_path / "x") == 2
    assert run(*command, "--output", tmp_path / "no" / "x") == 2
    assert capsys.readouterr().err.splitlines() == [
        "transduce: a part is a file, but --part 3/2 has no --output; add --output FILE",
        "transduce: --part must be I/N with 1 <= I <= N, such as 3/8, but it is '3/2'",
        f"transduce: an output's folder must exist, but {tmp_path / 'no'} does not; make it, or name another --output",
    ]


def test_parts_and_chunks_cover_every_input_once_in_order():
    for n, size in product((1, 2, 3, 7, 12, 13), (0, 1, 5, 12, 100)):
        spans = [Part(i, n).span(size) for i in range(1, n + 1)]
        assert [k for a, b in spans for k in range(a, b)] == list(range(size))
        assert max(b - a for a, b in spans) - min(b - a for a, b in spans) <= 1
        costs = [(7 * k) % 5 for k in range(size)]
        chunks = list(split_chunks(range(size), costs.__getitem__, n))
        spans = [(start, start + len(items)) for start, items in chunks]
        assert [k for a, b in spans for k in range(a, b)] == list(range(size)) and spans
        assert all(sum(costs[a : b - 1]) < n <= sum(costs[a:b]) for a, b in spans[:-1])


def test_default_workers_depend_on_input_cores_and_memory(folder, monkeypatch):
    job = Translation(run=folder / "text", machine=Machine(device="cpu"), **PLAIN)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr("transduce.device.memory", lambda _: 10 << 30)
    assert [default_workers(job, n) for n in (1, 3, 4, 15, 16, 1000)] == [1, 1, 2, 7, 8, 8]
    monkeypatch.setattr("transduce.device.memory", lambda _: 3 << 30)
    assert default_workers(job, 1000) == 5
    gpu = Translation(run=folder / "text", machine=Machine(device="cuda:1"), **PLAIN)
    assert default_workers(gpu, 1000) == 1


def test_every_process_of_torchrun_has_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert default_device() == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "6")
    assert default_device() == "cuda:2"


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_several_processes_write_the_same_lines(folder, small_chunks, tmp_path, capsys, caplog, command):
    """What every process warns of is told once."""
    options = ["--max-seconds", "30"] if command == "transcribe" else []
    assert run(*COMMANDS[command], *options, "--workers", "1") == FAILS[command]
    want, err = capsys.readouterr()
    caplog.clear()
    assert run(*COMMANDS[command], *options, "--workers", "2", "--output", tmp_path / "out") == FAILS[command]
    assert own_lines(capsys.readouterr().err) == own_lines(err)
    assert (tmp_path / "out").read_text() == want
    assert sum("segments of up to 30 s" in record.getMessage() for record in caplog.records) == len(options) / 2
