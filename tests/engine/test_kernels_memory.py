"""Memory of the kernels and forked processes: how much the kernels take, and what happens if there is too little."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels import needs_cpp

pytestmark = [needs_cpp, pytest.mark.process]

MODEL = """
import os, resource, sys
import torch
from transduce.engine.cpu import CPUEngine
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))

def model_of(**sizes):
    stack = StackConfig(n_layers=1, input=Tokens(vocab_size=50))
    return CPUEngine(Transformer(TransformerConfig(encoder=stack, decoder=stack, **sizes)).eval())

torch.set_num_threads(int(sys.argv[1]))
torch.set_grad_enabled(False)
"""


def in_a_process(code: str, *arguments: object, timeout: float = 60) -> str:
    """Run the code in a process of its own; returns what it prints."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", MODEL + code, *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


LACK = """
model = model_of(d_model=32, n_heads=2, d_ff=8192)
few, many = torch.ones(2, 5, dtype=torch.long), torch.ones(64, 200, dtype=torch.long)
ids = torch.ones(12800, 1, dtype=torch.long)
memory = model.encode(ids[:3].T)
calls = {
    "encoder_states": lambda: model.encode(many),
    "decoder_states": lambda: model.decoder_states(ids, memory=memory, cache=model.new_cache()),
}
want = model.encode(few).states
limit = status("VmSize") + (200 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    calls[sys.argv[2]]()
except MemoryError as error:
    print(error)
assert torch.equal(model.encode(few).states, want)
"""


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("function", ["encoder_states", "decoder_states"])
def test_out_of_memory_is_an_error_and_the_next_call_works(function, n_threads):
    """The kernel needs 420 MB of scratch, but only 200 MB are left."""
    output = in_a_process(LACK, n_threads, function)
    assert output == "the kernels need more memory than there is; decode fewer or shorter sentences at once\n"


SOME_LACK = """
model = model_of(d_model=32, n_heads=2, d_ff=32, max_positions=2200)
lengths = torch.arange(1000, 2200, 100)
many = torch.ones(len(lengths), 2200, dtype=torch.long)
want = model.encode(many[:1, :70]).states
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
room, n_errors = 14 << 20, 0
while True:
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + room, hard))
    try:
        model.encode(many, lengths)
        break
    except (MemoryError, RuntimeError):  # the latter is PyTorch's
        room += 1 << 17
        n_errors += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
assert torch.equal(model.encode(many[:1, :70]).states, want)
print(n_errors > 0)
"""


def test_out_of_memory_in_one_thread_keeps_shared_data_valid(monkeypatch):
    """The first thread may lack scratch of its own while others read keys and values that it laid out; with blocks that
    go back to the system at once, they would read where nothing is."""
    for name, value in (("MMAP_THRESHOLD", 1 << 16), ("TOP_PAD", 0), ("TRIM_THRESHOLD", 0)):
        monkeypatch.setenv(f"MALLOC_{name}_", str(value))
    assert in_a_process(SOME_LACK, 4) == "True\n"


LARGE = """
model = model_of(d_model=32, n_heads=2, d_ff=8192)
few, many = torch.ones(8, 5, dtype=torch.long), torch.ones(64, 200, dtype=torch.long)
model.encode(few)
before = status("VmRSS")
model.encode(many)
model.encode(few)
print(status("VmRSS") - before)
"""


@pytest.mark.parametrize("n_threads", [1, 2])
def test_memory_of_a_large_request_is_released(n_threads):
    """64 sentences of 200 positions take 400 MB for what is between the maps, (N, d_ff) floats."""
    assert int(in_a_process(LARGE, n_threads)) < 50 << 20


FORKED = """
import time
from concurrent.futures import ThreadPoolExecutor
import multiprocessing

model = model_of(d_model=256, n_heads=4, d_ff=1024)
ids = torch.randint(50, (64, 40), generator=torch.Generator().manual_seed(1))

def work():
    with torch.inference_mode():
        states = model.decoder_states(ids[:, :1], memory=model.encode(ids), cache=model.new_cache())
        return model.project(states).sum().item()

def by_fork():
    want = work()
    child = os.fork()
    if not child:
        os._exit(0 if abs(work() - want) < 1e-2 else 1)
    return os.waitpid(child, 0)[1]

print(by_fork())
with ThreadPoolExecutor(1) as pool:
    print(pool.submit(by_fork).result())
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(*[abs(pool.apply(work) - work()) < 1e-2 for _ in range(2)])
"""


def test_a_forked_process_can_compute():
    """OpenMP's threads do not live on in it, from whichever thread it is forked."""
    assert in_a_process(FORKED, 2).split() == ["0", "0", "True", "True"]
