"""Attention maps belong to the thread that computes them, even if others use the same model."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import torch

from tests import contract
from tests.model.test_contract import BASE, DECODER
from transduce.model.transformer import cross_attention


def test_decoding_in_other_threads_does_not_change_maps(rng):
    model = contract.random_model(replace(BASE, decoder=DECODER), rng)
    example = contract.random_example(model.config, rng)
    memory = example.memory(model)
    want = cross_attention(model, memory, example.target)
    ended = Event()

    @torch.no_grad()
    def decode():
        while not ended.is_set():
            model.decoder_states(example.target, memory=memory)

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(decode) for _ in range(2)]
        try:
            for _ in range(25):
                got = cross_attention(model, memory, example.target)
                assert got.shape == want.shape
                torch.testing.assert_close(got, want)
        finally:
            ended.set()
        for other in others:
            other.result()
