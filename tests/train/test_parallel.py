"""How processes share a training, with threads in their place; tests/train/test_distributed.py starts real ones."""

import math
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from tests.train import toy
from tests.train.sometimes import USES, Sometimes, count
from tests.train.threads import in_threads
from transduce.errors import InputError
from transduce.train.config import OptimConfig, TrainingConfig
from transduce.train.distributed import PeerFailed, World, hang_timeout, world
from transduce.train.objectives import CrossEntropy
from transduce.train.trainer import Trainer, seed_of_batch

DATA = toy.Backwards(n=80, tokens_per_batch=64)


class Trained(NamedTuple):
    """The results of a training."""

    losses: list[float]
    weights: dict[str, list]


class Shared:
    """Makes a training of float64 models for each of some threads.

    Args:
        spoil: function that changes a trainer before it runs.
        config: changes of the configuration.
    """

    def __init__(self, directory, size: int = 1, *, spoil: Callable[[Trainer], Any] = lambda trainer: None, **config):
        self.directory, self.spoil = directory, spoil
        self.config = toy.config(**{"accumulate": 3, "max_updates": 6, "validate_every": 6} | config)
        self.objectives = [CrossEntropy(toy.model().double()) for _ in range(size)]
        self.trainers: list[Any] = [None] * size

    def __call__(self, rank: int = 0) -> Trained:
        """Train."""
        given = {"data": DATA, "validate": toy.Scores(), "config": self.config, "directory": self.directory}
        trainer = self.trainers[rank] = Trainer(objective=self.objectives[rank], **given)
        losses, update = [], trainer.log.update
        trainer.log.update = lambda progress, parts, **how: (
            losses.append(parts["loss"]),
            update(progress, parts, **how),
        )
        self.spoil(trainer)
        trainer.run()
        return Trained(losses, {name: w.tolist() for name, w in toy.weights(trainer.model).items()})


def stopping(trainer: Trainer) -> None:
    """The second one is asked to stop in its third update."""
    update = trainer._update

    def asked(group, **more):
        trainer.stop.requested |= trainer.world.rank == 1 and trainer.progress.update == 2
        update(group, **more)

    trainer._update = asked


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_have_the_losses_and_weights_of_one(tmp_path, monkeypatch, size):
    """The last batches of an epoch are fewer than the processes. Dropout of a batch is the same wherever it is computed."""
    seeds: list[tuple[int, int, int]] = []
    monkeypatch.setattr("transduce.train.trainer.seed_of_batch", lambda *seed: seeds.append(seed))
    assert len(DATA.epoch(0)) % 3 == 1
    want, wanted_seeds = Shared(tmp_path / "one")(), set(seeds)
    seeds.clear()
    got = in_threads(size, Shared(tmp_path / "more", size))
    assert len(want.losses) == 6 and len(seeds) == len(wanted_seeds) == 3 + 3 + 1 + 3 + 3 + 1
    for each in got:
        torch.testing.assert_close(each.losses, want.losses, rtol=1e-12, atol=0)
        assert each.weights == got[0].weights
        for name, weight in each.weights.items():
            torch.testing.assert_close(torch.tensor(weight), torch.tensor(want.weights[name]), rtol=1e-7, atol=1e-9)
    assert set(seeds) == wanted_seeds


@pytest.mark.parametrize("uses", USES)
@pytest.mark.parametrize("size", [2, 3])
def test_partially_used_weights_train_as_in_one_process(tmp_path, uses, size):
    """A weight that no batch of an update uses does not change, neither by decay nor by momentum."""

    def shared(name: str, size: int) -> Shared:
        optim = OptimConfig(peak_rate=1e-2, warmup_steps=2, weight_decay=0.5)
        made = Shared(tmp_path / name, size, spoil=count, optim=optim)
        made.objectives = [Sometimes(uses) for _ in range(size)]
        return made

    want = shared("one", 1)()
    for each in in_threads(size, shared("more", size)):
        torch.testing.assert_close(each.losses, want.losses, rtol=1e-12, atol=0)
        for name, weight in each.weights.items():
            torch.testing.assert_close(torch.tensor(weight), torch.tensor(want.weights[name]), rtol=1e-7, atol=1e-9)


def test_dropout_depends_on_seed_update_and_batch_index():
    """The generator of a CPU reads the lower 32 bits of a seed."""

    def drawn(*seed: int) -> float:
        seed_of_batch(*seed)
        return torch.rand(()).item()

    assert drawn(1, 2, 0) == drawn(1, 2, 0)
    assert len({drawn(1, 2, 0), drawn(2, 2, 0), drawn(1, 3, 0), drawn(1, 2, 1), drawn(1, 2, 2)}) == 5


def test_all_processes_stop_an_update_after_a_request(tmp_path):
    got = in_threads(2, Shared(tmp_path, 2, spoil=stopping))
    assert [type(each) for each in got] == [KeyboardInterrupt] * 2
    assert (tmp_path / "checkpoints" / "00000004" / "optimizer.safetensors").is_file()
    shared = Shared(tmp_path, 3)
    got = in_threads(3, shared)
    want = Shared(tmp_path / "one")().losses
    torch.testing.assert_close(got[0].losses, want[4:], rtol=1e-12, atol=0)
    assert [trainer.progress.update for trainer in shared.trainers] == [6] * 3


def test_clock_of_the_first_process_counts(tmp_path):
    """All save after ten minutes, which they learn an update later, and at the end; the first one writes."""
    written: list[int] = []
    saved: dict[int, list[int]] = {0: [], 1: []}

    def late(trainer: Trainer) -> None:
        update, save, rank = trainer._update, trainer._save, trainer.world.rank
        write = trainer.store.save
        trainer.store.save = lambda *parts: (written.append(rank), write(*parts))
        trainer._save = lambda: (saved[rank].append(trainer.progress.update), save())

        def shifted(*args: Any, **more: Any) -> None:
            if trainer.progress.update == 0:
                trainer.started -= 1000 if trainer.world.first else 5000
            update(*args, **more)

        trainer._update = shifted

    shared = Shared(tmp_path, 2, spoil=late, max_updates=4, validate_every=4, save_every_minutes=10.0)
    in_threads(2, shared)
    assert saved == {0: [2, 4], 1: [2, 4]} and written == [0, 0]
    assert all(1000 <= trainer.progress.seconds < 1100 for trainer in shared.trainers)


def test_non_finite_gradient_in_one_process_skips_the_update_in_all(tmp_path):
    """And halves the loss scale of float16 in all."""

    def overflow(trainer: Trainer) -> None:
        def look(gradient: torch.Tensor) -> torch.Tensor:
            return gradient * math.inf if trainer.world.rank == 1 and trainer.progress.update == 2 else gradient

        trainer.model.decoder.layers[0].feed_forward.wide.weight.register_hook(look)

    shared = Shared(tmp_path, 2, spoil=overflow, precision="fp16", accumulate=2)
    first, second = in_threads(2, shared)
    assert first == second
    progress, other = (trainer.progress for trainer in shared.trainers)
    assert (progress.skipped, progress.loss_scale) == (other.skipped, other.loss_scale) == (1, (2.0**15, 3))


def test_dead_process_is_named_in_the_timeout(tmp_path, monkeypatch):
    def dying(trainer: Trainer) -> None:
        trainer._update = partial(update, trainer, trainer._update)

    def update(trainer: Trainer, own: Callable, *args: Any, **more: Any) -> None:
        if trainer.world.rank == 1 and trainer.progress.update == 2:
            raise ValueError("dead")
        own(*args, **more)

    monkeypatch.setattr("transduce.train.distributed.LATE", timedelta(seconds=0.1))
    monkeypatch.setenv("TRANSDUCE_HANG_MINUTES", "2.5")
    got = in_threads(3, Shared(tmp_path, 3, spoil=dying))
    assert [type(each) for each in got] == [TimeoutError, ValueError, TimeoutError]
    assert str(got[0]) == (
        "process 0 of 3 waits in vain: no answer from process 1, which hangs or has ended; its own output may say why. "
        "Stop all of them and run the same command again: it goes on from the newest checkpoint. If it only needed longer "
        "than the others, set TRANSDUCE_HANG_MINUTES to more than 2.5"
    )
    assert str(got[2]).startswith("process 2 of 3 waits in vain: no answer from process 1, ")


def test_other_errors_of_an_exchange_are_raised_unchanged():
    def work(rank: int) -> None:
        with World(rank, 2, store).exchanging():
            raise RuntimeError("out of memory")

    store = dist.HashStore()
    for error in in_threads(2, work):
        assert isinstance(error, RuntimeError) and str(error) == "out of memory"


def test_lost_store_is_attributed_to_the_first_process():
    """Without torchrun it lives in the first process."""

    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("broken pipe")

    waiting = World(1, 3, Gone())
    message = "^process 1 of 3 waits in vain: no answer from process 0, "
    with pytest.raises(TimeoutError, match=message), waiting.exchanging():
        raise RuntimeError("broken pipe")


def test_all_processes_must_see_the_same_checkpoints(tmp_path, monkeypatch):
    """Here the second one has an older checkpoint."""
    monkeypatch.setattr("transduce.train.distributed.LATE", timedelta(seconds=0.1))
    for rank in range(2):
        Shared(tmp_path / str(rank), max_updates=3 - rank)()

    def work(rank: int) -> None:
        shared.directory = tmp_path / str(rank)
        shared(rank)

    shared = Shared(tmp_path, 2)
    got = in_threads(2, work)
    assert isinstance(got[1], ValueError)
    assert "has update 2 for process 1 and another one for the first" in str(got[1])


def test_work_is_shared_round_robin_and_gathered_in_order():
    def work(rank: int) -> tuple[list[int], list[float], str]:
        mine = World(rank, 3)
        squares = mine.gather([i * i for i in mine.share(range(7))])
        return squares, mine.all_reduce_sum(rank, 0.5), mine.broadcast(f"by {rank}")

    assert in_threads(3, work) == [([0, 1, 4, 9, 16, 25, 36], [3.0, 1.5], "by 0")] * 3
    alone = World()
    assert (
        alone.gather(alone.share([1, 2])) == [1, 2] and alone.all_reduce_sum(3) == [3.0] and alone.broadcast("x") == "x"
    )


def test_barrier_waits_for_the_first_process():
    store, order = dist.HashStore(), []

    def first() -> None:
        order.append("prepared")
        World(0, 2, store).barrier()

    waiting = threading.Timer(0.05, first)
    waiting.start()
    World(1, 2, store).barrier()
    assert order == ["prepared"]
    World().barrier()  # alone there is nothing to wait for


@pytest.mark.parametrize("gpu", [False, True])
def test_torchrun_settings_and_store_prefix_of_restarts(monkeypatch, gpu):
    """By TRANSDUCE_HANG_MINUTES; over NCCL where there are GPUs, each process with its own."""
    store, joined, devices = dist.HashStore(), {}, []
    monkeypatch.setattr(dist, "rendezvous", lambda url: iter([(store, 1, 4)]))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: joined.update(how, backend=backend))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    own = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "TORCHELASTIC_RESTART_COUNT": "2"}
    for name, value in {**own, "TRANSDUCE_HANG_MINUTES": "0.5"}.items():
        monkeypatch.setenv(name, value)
    got = world.__wrapped__()
    assert (got.rank, got.size, got.first) == (1, 4, False)
    assert (joined["rank"], joined["world_size"], joined["timeout"]) == (1, 4, timedelta(seconds=30))
    assert joined["backend"] == ("cpu:gloo,cuda:nccl" if gpu else "gloo") and devices == ([1] if gpu else [])
    got.store.set("key", "value")
    second = dist.PrefixStore("start 2", store)
    assert not store.check(["key"]) and second.check(["key"]) and second.get("key") == b"value"
    monkeypatch.delenv("MASTER_ADDR")  # a cluster's variable alone means nothing
    assert world.__wrapped__() == World()


def test_port_in_use_is_a_one_line_error(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(InputError) as caught:
            world.__wrapped__()
    message = str(caught.value)
    assert message.startswith(
        "the processes of a training must reach each other, but with RANK=0, LOCAL_RANK=0, WORLD_SIZE=2, "
        f"MASTER_ADDR=127.0.0.1, MASTER_PORT={port} this one cannot (DistNetworkError: "
    )
    assert "EADDRINUSE" in message and "another --master-port" in message and "\n" not in message


@pytest.mark.parametrize("own", [{"RANK": ""}, {"MASTER_PORT": "none"}, {"MASTER_PORT": "99999"}])
def test_invalid_torchrun_variables_are_refused(monkeypatch, own):
    given = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in (given | own).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="must reach each other") as caught:
        world.__wrapped__()
    assert "\n" not in str(caught.value)


def test_only_the_first_failure_is_reported():
    """The others learn of it where they wait, and in an exchange."""
    store = dist.HashStore()
    first, second, third = (World(rank, 3, store) for rank in range(3))
    assert (
        second.report_failure()
        and second.report_failure()
        and not third.report_failure()
        and not first.report_failure()
    )
    for peer in (third, World(2, 3, store)):
        with pytest.raises(PeerFailed):
            peer.barrier()
        with pytest.raises(PeerFailed), peer.exchanging("gloo"):
            raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")
        with pytest.raises(RuntimeError, match="out of memory"), peer.exchanging("gloo"):
            raise RuntimeError("out of memory")
    assert World().report_failure()


def test_fewer_batches_than_processes_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError) as caught:
        TrainingConfig(accumulate=2).check_processes(4)
    assert str(caught.value) == (
        "an update must have a batch for every process, but accumulate=2 and there are 4 processes; give "
        "--training.accumulate 4, with which an update has 2 x as many tokens; make batches smaller by as much, or raise the "
        "rate"
    )
    n = len(toy.Backwards(n=8).epoch(0))
    monkeypatch.setattr("tests.train.test_parallel.DATA", toy.Backwards(n=8))
    for error in in_threads(n + 1, Shared(tmp_path, n + 1, accumulate=n + 1)):
        assert isinstance(error, ValueError) and f"the data has {n} batches" in str(error)


@pytest.mark.parametrize("minutes", ["soon", "0", "-1", "nan", "1e300"])
def test_invalid_hang_timeouts_are_refused(monkeypatch, minutes):
    monkeypatch.setenv("TRANSDUCE_HANG_MINUTES", minutes)
    with pytest.raises(ValueError) as caught:
        hang_timeout()
    assert str(caught.value) == (
        f"TRANSDUCE_HANG_MINUTES must be a number of minutes above 0, but it is {minutes!r}; unset it for 10"
    )
