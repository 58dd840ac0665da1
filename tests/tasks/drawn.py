"""Drawn at random: a small model of any kind, a vocabulary, inputs, and a way to search; and what an output should score.

The scores are written out once more, from whole forward passes over the given tokens, without a cache, beams or batch.
"""

import random
import statistics
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import transduce as td
from tests.contract import random_model
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.config import VectorConfig
from transduce.data.features import VectorReader
from transduce.decode.scorer import ModelScorer
from transduce.engine.select import engine_for
from transduce.model.cache import Cache
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Memory, Transformer
from transduce.tasks.base import LanguageModel
from transduce.tasks.generate import Generator
from transduce.tasks.outputs import Output
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

PAD, BOS, EOS, UNK = range(4)
PIECES = ["a", "b", " ", "ab", "c", "d", "ba", " c", "e", "bad", "dab ", "é"]
WORDS = ("a", "bad", "abba", "c")
DTYPES = {"float64": torch.float64, "float32": torch.float32, "int8": torch.float32, "bf16": torch.bfloat16}


class PieceTokenizer(Tokenizer):
    """Four special tokens, and some pieces; the longest that fits is taken."""

    def __init__(self, n: int) -> None:
        super().__init__(b"")
        self.pieces = PIECES[:n]

    vocab_size = property(lambda self: 4 + len(self.pieces))  # type: ignore[assignment]
    pad_id, bos_id, eos_id, unk_id = (property(lambda self, i=i: i) for i in range(4))  # type: ignore[assignment,misc]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        rows = []
        for text in texts:
            row = []
            while text:
                best = max((piece for piece in self.pieces if text.startswith(piece)), key=len, default="")
                row.append(4 + self.pieces.index(best) if best else UNK)
                text = text[len(best) or 1 :]
            rows.append(row)
        return rows

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(self.pieces[i - 4] for i in row if i > UNK) for row in ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [["<pad>", "<s>", "</s>", "<unk>", *self.pieces][i] for i in ids]


class Past(Cache):
    """All that a search without a cache has read."""

    ids: Tensor | None = None
    whole: Memory | None = None

    def reorder(self, rows: Tensor) -> None:
        assert self.ids is not None
        self.ids = self.ids[rows]

    def keep(self, sentences: Tensor) -> None:
        if self.whole is not None:
            self.whole = Memory(*(None if part is None else part[sentences] for part in self.whole))


class Uncached(Transformer):
    """A model that reads everything anew for every token, and repeats the memory for every beam."""

    def new_cache(self) -> Past:
        return Past(0)

    def decoder_states(
        self, target_in: Tensor, *, memory: Memory | None = None, cache: Cache | None = None, **_: Any
    ) -> Tensor:
        if not isinstance(cache, Past):
            return super().decoder_states(target_in, memory=memory)
        cache.whole = cache.whole if memory is None else memory
        cache.ids = ids = target_in if cache.ids is None else torch.cat((cache.ids, target_in), dim=1)
        if (own := cache.whole) is not None:
            beams = len(ids) // len(own.states)
            own = Memory(*(None if part is None else part.repeat_interleave(beams, dim=0) for part in own))
        return super().decoder_states(ids, memory=own)[:, -target_in.size(1) :]


class Case:
    """What one seed draws."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = self.rng = random.Random(seed)
        self.task = rng.choice(["text", "text", "speech", "language"])
        self.precision = rng.choices(list(DTYPES), [5, 3, 1, 1])[0]
        self.tokenizer = PieceTokenizer(rng.randint(2, len(PIECES)))
        n = rng.randint(3, 6)
        self.inputs: list[Any] = [self._text(rng.randint(1, 9)) for _ in range(n)]
        if self.task == "speech":
            frames = torch.Generator().manual_seed(seed)
            self.inputs = [torch.randn(rng.randint(4, 14), 4, generator=frames) for _ in range(n)]
        elif self.task == "text" and rng.random() < 0.3:
            self.inputs[rng.randrange(n)] = rng.choice(["", " "])
        self._draw_way()
        self._draw_models()

    def _text(self, n: int) -> str:
        return "a" + "".join(self.rng.choices(self.tokenizer.pieces, k=n))

    def _draw_way(self) -> None:
        """Settings of the search, most of which are off in most cases."""
        rng = self.rng

        def some(p: float, *values: Any, default: Any) -> Any:
            return rng.choice(values) if rng.random() < p else default

        beam_size = rng.choice([1, 2, 3, 4, 6])
        way: dict[str, Any] = {"beam_size": beam_size, "alpha": rng.choice([0.0, 0.6, 1.0, 2.0])}
        way["min_length"], way["no_repeat_ngram"] = some(0.2, 1, 4, default=0), some(0.25, 1, 2, 3, default=0)
        way["repetition_penalty"] = some(0.2, 0.7, 1.5, default=1.0)
        way["suppress"] = some(0.2, (4,), (5, 4), default=())
        way["forbid"] = some(0.2, ("b",), ("a a", "ab"), ("ba ",), default=())
        sample = rng.random() < 0.2
        drawing = {"temperature": rng.choice([0.5, 1.0, 2.0]), "top_k": rng.choice([0, 1, 3])}
        drawing |= {"top_p": rng.choice([0.3, 0.9, 1.0]), "seed": rng.randint(0, 99)}
        self.prefix: list[str] | None = None
        self.require: list[list[str]] | None = None
        self.lm_weight = self.ctc_weight = 0.0
        self.n_models = some(0.3, 2, 3, default=1)
        if self.task == "language":
            greedy = beam_size == 1 and not sample
            way |= {"max_length": rng.randint(1, 9), "n": 1 if greedy else rng.randint(1, max(4 * sample, beam_size))}
            way |= {**drawing, "beam_size": 1} if sample else {"temperature": float(not greedy)}
            way["min_length"] = min(way["min_length"], way["max_length"])
            self.way: Any = td.GenerationConfig(**way)
            return
        way["at_max_length"] = rng.choice(["finished_first", "by_score"])
        way |= {"length_ratio": rng.choice([0.0, 0.5, 1.0]), "length_extra": rng.randint(1, 8)}
        way |= {"max_length": some(0.2, 1, 2, 5, default=0), "n_best": rng.randint(1, beam_size)}
        way["min_length"] = min(way["min_length"], way["max_length"] or way["min_length"])
        self.lm_weight = some(0.2, 0.3, 1.0, default=0.0)
        if self.task == "text":
            texts = self.inputs[::-1]
            self.prefix = some(0.2, [text[: rng.randint(0, 3)] for text in texts], default=None)
            self.require = some(0.2, [text[:5].split()[:2] for text in texts], default=None)
        else:
            self.ctc_weight = some(0.5, 0.3, 1.0, default=0.0)
            way["words"] = some(0.3, "known", default="any")
        if sample and not self.require:
            way |= {"sample": True, **drawing}
        weights = {"lm_weight": self.lm_weight, "ctc_weight": self.ctc_weight}
        self.way = td.SearchConfig(**way, **weights)

    def _draw_models(self) -> None:
        """Models with random weights; those of float32 compute as loaded ones do, in C++ where there is a compiler."""
        rng = self.rng
        target = StackConfig(input=Tokens(vocab_size=self.tokenizer.vocab_size), n_layers=rng.randint(1, 2))
        source = {"text": target, "speech": StackConfig(input=Frames(n_features=4, stack=2), n_layers=1)}
        plain: dict[str, Any] = {"d_model": 8, "n_heads": 2, "d_ff": 12, "tie": "none", "dropout": 0.0}
        plain |= {"norm_position": rng.choice(["pre", "post"]), "positions": rng.choice(["sinusoidal", "learned"])}
        if rng.random() < 0.3:
            plain |= {"positions": rng.choice(["rotary", "none"]), "n_kv_heads": rng.choice([1, 2])}
            plain |= {"window": rng.choice([None, 3]), "norm": rng.choice(["layer", "rms"])}
            plain["gated"] = rng.random() < 0.5
        config = TransformerConfig(
            encoder=source.get(self.task), decoder=target, ctc=self.task == "speech", max_positions=60, **plain
        )
        weights = torch.Generator().manual_seed(self.seed)
        configs = [config] * self.n_models + [replace(config, encoder=None, ctc=False)]
        whole = [random_model(each, weights).float() for each in configs]
        self.whole = [model.double() for model in deepcopy(whole)]
        """As accurate as can be, with the weights that the others have; the last one is the language model beside."""
        self.engines = [model.to(DTYPES[self.precision]) for model in whole]
        if DTYPES[self.precision] == torch.float32:
            self.engines = [engine_for(model, int8=self.precision == "int8") for model in self.engines]
        if self.precision in ("int8", "bf16"):
            self.whole = self.engines

    @property
    def drawn(self) -> bool:
        """Whether outputs are samples, which depend on the number of their input; a generator's greedy texts count."""
        return self.way.beam_size == 1 if self.task == "language" else self.way.sample

    @property
    def exact(self) -> bool:
        """Whether rounding is so fine that no batch should change what comes out."""
        return self.precision in ("float64", "float32")

    def search(self, order: Sequence[int] = (), batch: int = 10**6, *, uncached: bool = False) -> list[list[Output]]:
        """The outputs of the inputs, searched in this order, with this bound on a batch; in the order of the inputs.

        Args:
            order: some of the inputs, or none for all.
        """
        numbers = [*order] or list(range(len(self.inputs)))
        inputs, models = [self.inputs[i] for i in numbers], self.engines
        if uncached:
            models = deepcopy(self.whole)
            for model in models:
                model.__class__ = Uncached
        got = self._search(inputs, numbers, models, batch)
        return [outputs for _, outputs in sorted(zip(numbers, got, strict=True))]

    def _search(
        self, inputs: list[Any], numbers: list[int], models: list[Transformer], batch: int
    ) -> list[list[Output]]:
        (*own, lm), tokenizer = models, self.tokenizer
        if self.task == "language":
            generator = Generator(own[0], tokenizer)
            generator.engines = tuple(own)
            return generator.generate(inputs, replace(self.way, batch_size=batch))
        way, start = replace(self.way, batch_tokens=batch), torch.tensor([[BOS]])
        if self.task == "text":
            task: Any = Translator(own[0], tokenizer, tokenizer)
        else:
            task = Transcriber(own[0], tokenizer, VectorReader(VectorConfig(n_features=4)), lexicon=WORDS)
        task.engines = tuple(own)
        task.lm = LanguageModel(lambda n: ModelScorer(lm, prompts=start.expand(n, 1)))
        if self.task == "speech":
            return task.decode(inputs, way)
        constraints = {"prefix": self.prefix, "require": self.require}
        return task.translate(inputs, way, **{k: v and [v[i] for i in numbers] for k, v in constraints.items()})

    @torch.no_grad()
    def scores(self, i: int, output: Output) -> tuple[float, float]:
        """The log-probability and the score that an output of input i should have."""
        way, ids = self.way, [*output.tokens, *[EOS] * output.finished]
        *models, lm = self.whole
        if self.task == "language":
            read, memories = [BOS, *self.tokenizer.encode([self.inputs[i]])[0]], [None] * len(models)
        else:
            read, memories = [BOS], [self._memory(model, self.inputs[i]) for model in models]
        target_in, pairs = torch.tensor([[*read, *ids[:-1]]]), list(zip(models, memories, strict=True))
        tables = [
            model.project(model.decoder_states(target_in, memory=memory))[0, len(read) - 1 :].double()
            for model, memory in pairs
        ]
        if alone := len(models) == 1 and not self.ctc_weight and not self.lm_weight:
            total = tables[0]
        else:
            total = (1 - self.ctc_weight) * torch.stack([table.log_softmax(-1) for table in tables]).mean(dim=0)
            if self.lm_weight:
                total += self.lm_weight * lm.project(lm.decoder_states(target_in))[0].double().log_softmax(-1)
        for t in range(len(ids)):
            before = [*{*read, *ids[:t]}]
            old = total[t, before]
            total[t, before] = torch.where(old < 0, old * way.repetition_penalty, old / way.repetition_penalty)
        total = total.log_softmax(-1) if alone else total
        log_prob = sum(total[t, token].item() for t, token in enumerate(ids))
        if self.ctc_weight:
            log_prob += self.ctc_weight * statistics.mean(ctc_log_prob(*pair, output.tokens) for pair in pairs)
        score = log_prob / ((5 + len(ids)) / 6) ** way.alpha
        return log_prob, score

    def _memory(self, model: Transformer, given: Any) -> Memory:
        """What the encoder makes of one input alone."""
        if isinstance(given, str):
            return model.encode(torch.tensor([[*self.tokenizer.encode([given])[0], EOS]]))
        return model.encode(given[None].to(model.dtype), torch.tensor([len(given)]))


def ctc_log_prob(model: Transformer, memory: Memory, tokens: list[int]) -> float:
    """The log-probability that CTC spells exactly these tokens, by PyTorch's loss."""
    log_probs = model.ctc_logits(memory.states)[0].double().log_softmax(-1)[:, None]
    sizes = torch.tensor([len(log_probs)]), torch.tensor([len(tokens)])
    return -F.ctc_loss(log_probs, torch.tensor([tokens]), *sizes, blank=PAD, reduction="none").item()
