"""transduce watch: a browser sees what the run is now and nothing else, and Ctrl-C ends it."""

import _thread
import json
import signal
import socket
import threading
import time

import httpx
import pytest

from tests.runs import LITTLE, random_run
from transduce.cli.main import main


@pytest.fixture
def run(tmp_path):
    return random_run(tmp_path / "run", model=LITTLE)


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C ends what runs, though whoever runs the tests may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as got:
        return got.getsockname()[1]


def add(run, update: int, loss: float) -> None:
    line = {"update": update, "epoch": 0, "kind": "valid", "seconds": 1.0, "loss": loss}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def watched(run, look, capsys) -> tuple[str, object]:
    """What `look` gives, called with a client and the port while the run is watched; and stderr until Ctrl-C ended it."""
    port, got = free_port(), []

    def browser() -> None:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()  # who goes at once does no harm
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        else:
            return  # the command has ended, and says why
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                got.append(look(client, port))
        finally:
            _thread.interrupt_main()

    asking = threading.Thread(target=browser)
    asking.start()
    assert main(["watch", str(run), "--port", str(port)]) == 130
    asking.join()
    assert got
    assert capsys.readouterr().err.startswith(f"transduce: {run} at http://127.0.0.1:{port}, described at")
    return got[0]


def test_the_page_shows_the_current_state_of_the_run(run, capsys):
    def look(client, port):
        info = client.get("/page/runs").json()
        assert (info["runs"], info["records"]) == ([], ["run"])
        assert 'role="tabpanel" aria-labelledby="tab-runs"' in client.get("/").text
        seen = []
        for update in (100, 200, 300):
            add(run, update, 1 / update)
            record = client.get("/page/runs/run").json()
            seen.append((record["progress"], record["curves"][0]["validation"][-1]))
        (run / "test.json").write_text('[{"search": "greedy", "measure": "bleu", "value": 4.5, "score": "BLEU 4.5"}]')
        (score,) = client.get("/page/runs/run").json()["scores"]["test"]
        assert score["score"] == "BLEU 4.5"
        return seen

    assert watched(run, look, capsys) == [
        (f"update {update}, epoch 1, 0.0 min", [update, 1 / update]) for update in (100, 200, 300)
    ]


def test_requests_cannot_read_files_or_change_anything(run, capsys):
    (run / "secret").write_text("the secret")

    def look(client, port):
        got = [client.post("/").status_code, client.request("DELETE", "/secret").status_code]
        for path in (
            "/secret",
            "/config.json",
            "/../run/secret",
            f"//{run}/secret",
            "/%2e%2e/secret",
            "/page/runs/..%2Frun",
        ):
            with socket.create_connection(("127.0.0.1", port)) as plain:  # as it stands: httpx would tidy it up
                plain.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                answer = b"".join(iter(lambda: plain.recv(4096), b""))
            assert b"the secret" not in answer
            got.append(int(answer.split()[1]))
        return got

    assert watched(run, look, capsys) == [405, *[404] * 7]


def test_invalid_runs_and_ports_are_refused(run, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, wrong in [
            ([tmp_path], f"{tmp_path} has no config.json"),
            ([tmp_path / "no"], f"{tmp_path / 'no'} does not exist"),
            ([run, "--port", port], f"cannot listen on 127.0.0.1, port {port} ("),
            ([run, "--port", "70000"], "port=70000"),
        ]:
            assert main(["watch", *map(str, words)]) == 2, words
            assert wrong in capsys.readouterr().err, words
