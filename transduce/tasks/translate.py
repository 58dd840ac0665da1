"""Translation of text to text."""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from typing import Any

from jaxtyping import Float
from torch import Tensor

from transduce.data.base_tokenizer import TAG, Tokenizer, tag_of
from transduce.data.glossary import Glossary, at_word
from transduce.data.lines import is_blank
from transduce.decode.config import BeamConfig
from transduce.decode.phrases import text_prefix
from transduce.errors import InputError, logger
from transduce.model.transformer import Transformer
from transduce.tasks.base import (
    PLAIN,
    Details,
    Request,
    Source,
    check_list,
    in_order,
    last_position,
    warn_of_lacking,
    with_phrases,
)
from transduce.tasks.config import SearchConfig
from transduce.tasks.outputs import (
    Output,
    TokenScores,
    WordAlignment,
    joined_texts,
    word_alignment,
    word_spans,
)
from transduce.tasks.search import bias_of, outputs_of
from transduce.tasks.seq2seq import Alignment, Seq2SeqTask

SENTENCE_END = re.compile(
    r"""[.!?…\u0589\u061f\u06d4\u0964\u0965\u104b\u1362\u1367\u17d4]["'”’»)\]]*\s+"""
    r"""|[。！？]["'”’」』）]*\s*"""
)
"""The end of a sentence, closing quotes and brackets included, and the space after it."""

OPENING = "\"'“‘«„([¿¡"
"""Marks that may stand before the first letter of a sentence."""


class Translator(Seq2SeqTask[str]):
    """Translates a line, or each line in a list, in the same order; a blank line stays blank."""

    def __init__(
        self,
        model: Transformer,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        decoding: SearchConfig | None = None,
    ) -> None:
        super().__init__(model, target_tokenizer, decoding)
        self.source_tokenizer = source_tokenizer

    def _texts(
        self, inputs: Sequence[str], decoding: SearchConfig | None, settings: dict[str, Any]
    ) -> list[str]:
        stream = self.stream(inputs, decoding, details=Details(scores=False), **settings)
        return [best.text for best, *_ in in_order(stream)]

    def translate(
        self,
        lines: Sequence[str],
        decoding: SearchConfig | None = None,
        *,
        prefix: Sequence[str] | None = None,
        require: Sequence[Sequence[str]] | None = None,
        first_line: int = 1,
        token_scores: bool = False,
        alignments: bool = False,
        **settings: Any,
    ) -> list[list[Output]]:
        """The n best translations of every line, best first.

        Args:
            decoding: the search configuration; default: the run's own.
            settings: fields of SearchConfig, such as n_best=3; the others stay as they are in
                `decoding`.
            prefix: the beginning of each translation, "" for none; its last word may be continued,
                unless the prefix ends with a space.
            require: the required phrases of each translation, [] for none. A wider beam finds
                better places for them.
            first_line: the number of lines[0], for warnings and samples.
            token_scores: give every output the log-probabilities of its tokens and the confidence
                of its words.
            alignments: give every output the source words that its words are aligned to.
        """
        return in_order(
            self.stream(
                lines,
                decoding,
                prefix=prefix,
                require=require,
                first_line=first_line,
                details=Details(token_scores=token_scores, alignments=alignments),
                **settings,
            )
        )

    def stream(
        self,
        lines: Sequence[str],
        decoding: SearchConfig | None = None,
        *,
        prefix: Sequence[str] | None = None,
        require: Sequence[Sequence[str]] | None = None,
        first_line: int = 1,
        details: Details = PLAIN,
        **settings: Any,
    ) -> Iterator[tuple[int, list[Output]]]:
        """Yield the index and the n best translations of a line, as batches finish: blank lines
        first, then long ones.

        Args:
            details: what outputs carry besides their text.
            prefix, require, first_line, settings: see `translate`.
        """
        check_list(lines, "translate takes a list of lines", of_text=True)
        task = self._for_call(settings, decoding)
        check_tags(lines, task.source_tokenizer, first_line)
        rows = with_phrases(lines, prefix, require)
        terms = Glossary(task.decoding.glossary)
        required = task.decoding.glossary_bonus == math.inf
        requests = [
            Request(
                prefix=text_prefix(task.tokenizer, prefix),
                require=[*phrases, *map(at_word, terms(line) if required else ())],
                number=number,
            )
            for number, (line, prefix, phrases) in enumerate(rows, first_line - 1)
        ]
        return task._stream(lines, requests, details)

    def _stream(
        self, lines: Sequence[str], requests: Sequence[Request], details: Details
    ) -> Iterator[tuple[int, list[Output]]]:
        config = self.decoding
        rows, ways = self._ways(lines, requests)
        yield from ((i, [Output("")] * config.n_best) for i in range(len(lines)) if i not in ways)
        scored = details.scores or any(len(each) > 1 for each in ways.values())
        sources: list[Source] = [ids for *_, ids in rows]
        outputs: dict[int, list[Output]] = {}

        def search(batch: list[int]) -> list[list[Output]]:
            _, parts, texts, ids = zip(*(rows[row] for row in batch), strict=True)
            hypotheses = self._search(ids, parts, config, scored=scored)
            best = [outputs_of(self.tokenizer, each, config) for each in hypotheses]
            pairs = zip(texts, self._detailed(ids, best, details), strict=True)
            return [[self._by_words(text, each) for each in some] for text, some in pairs]

        def mean_log_prob(way: range) -> float:
            """The mean log-probability of a token, ends included, without bonuses."""
            best = [outputs[row][0] for row in way]
            log_probs = [output.log_prob for output in best]
            if config.glossary or config.logit_bias:
                scores = self._token_scores([sources[row] for row in way], best)
                log_probs = [each.log_prob for each in scores]
            return sum(log_probs) / sum(len(output.tokens) + 1 for output in best)

        for row, best in self._in_batches([*map(len, sources)], config.batch_tokens, search):
            i, request, *_ = rows[row]
            outputs[row] = best
            if all(each in outputs for way in ways[i] for each in way):
                way, *others = ways[i]
                if others:
                    way = max(ways[i], key=mean_log_prob)
                texts = [outputs[each] for each in way]
                parts = [rows[row][2] for row in way]
                translations = [
                    in_line(lines[i], parts, each) for each in join_parts(texts, config)
                ]
                name = f"line {request.number + 1}"
                warn_of_lacking(name, request.require, translations[0].text, self.tokenizer)
                yield i, translations

    def with_decoding(self, decoding: SearchConfig) -> "Translator":
        """The same task with another `decoding`, in the languages that it names."""
        task = super().with_decoding(decoding)
        task.source_tokenizer, task.tokenizer = in_languages(
            self.source_tokenizer, self.tokenizer, decoding
        )
        return task

    def sources(self, inputs: Sequence[str]) -> list[Source]:
        """Ids of every line, with EOS; nothing is cut."""
        check_list(inputs, "encode, score and align take a list of lines", of_text=True)
        check_tags(inputs, self.source_tokenizer)
        return [*self.source_tokenizer.with_eos(self.source_tokenizer.encode(inputs))]

    def _alignment(
        self, source: Source, output: Output, weights: Float[Tensor, "L H T S"]
    ) -> Alignment:
        assert isinstance(source, list)
        text = slice(len(self.source_tokenizer.opening), -1)  # opening and EOS are no words
        source_words = word_spans(self.source_tokenizer, source[text])
        target_words = word_spans(self.tokenizer, output.tokens)
        words = word_alignment(weights.mean(dim=1)[:, :, text], source_words, target_words)
        target = self.tokenizer.tokens(self._target(output))
        return Alignment(self.source_tokenizer.tokens(source), target, weights, words=words)

    def _by_words(self, text: str, output: Output) -> Output:
        """The output with its alignment mapped to the words of the source that white space
        separates. The words that its tokens spell may differ: a tokenizer may split a word, such as
        it´s, drop it, or join two. Both have the same letters."""
        if output.alignment is None:
            return output
        tokenizer = self.source_tokenizer
        words = [word.strip() for word in tokenizer.decode(tokenizer.encode(text.split()))]
        ends = [*accumulate(len("".join(word.split())) for word in words)]
        starts = [*accumulate(map(len, output.alignment.source), initial=0)]
        numbers = [min(bisect_right(ends, start), len(words) - 1) for start in starts]
        pairs = [(numbers[i], n) for i, n in output.alignment.pairs]
        return replace(output, alignment=replace(output.alignment, source=words, pairs=pairs))

    def _ways(
        self, lines: Sequence[str], requests: Sequence[Request]
    ) -> tuple[list[tuple[int, Request, str, list[int]]], dict[int, list[range]]]:
        """The texts to translate: line number, request, text and ids; and for every line that is
        not blank, the alternative ways to translate it, each as the numbers of one or more of these
        texts.

        A line that is longer than split_length has a second way, by its sentences; if it is longer
        than max_source_length, that is the only one. A line with a prefix or required phrases is
        not split, as they belong to its whole text. A text that is still too long is cut, with a
        warning.
        """
        config = self.decoding
        tokenizer = self.source_tokenizer
        limit = min(config.max_source_length, last_position(*self.engines, source=True))
        limit = max(0, limit - len(tokenizer.with_eos([[]])[0]))
        glossary = Glossary(config.glossary)
        rows: list[tuple[int, Request, str, list[int]]] = []
        ways: dict[int, list[range]] = defaultdict(list)
        encoded = tokenizer.encode(lines)
        for i, (line, line_request, ids) in enumerate(zip(lines, requests, encoded, strict=True)):
            if is_blank(line):
                continue
            each = [[(line, ids)]]
            if 0 < config.split_length < len(ids) and not line_request.has_text:
                parts = sentences(line)
                if len(parts) > 1:
                    pairs = zip(parts, tokenizer.encode(parts), strict=True)
                    each = each * (len(ids) <= limit) + [list(pairs)]
            first = len(rows)
            for way in each:
                ways[i].append(range(len(rows), len(rows) + len(way)))
                for text, ids in way:
                    if len(ids) > limit:
                        logger.warning(
                            "line %d has %d tokens and was cut to %d (max_source_length)",
                            line_request.number + 1,
                            len(ids),
                            limit,
                        )
                    bias = bias_of(glossary(text), config.glossary_bonus)
                    request = replace(line_request, part=len(rows) - first, bias=bias)
                    rows.append((i, request, text, tokenizer.with_eos([ids[:limit]])[0]))
        return rows, ways


def check_tags(lines: Sequence[str], source: Tokenizer, first_line: int = 1) -> None:
    """Check that each line's target language comes from one place, a tag in the line or
    target_language, if the model has tags for several.

    A warning names the first line without a language; the model guesses the languages of such
    lines.

    Raises:
        InputError: a line has a tag although a language was named.
    """
    known = {tag_of(language) for language in source.tagged_languages}
    if len(known) < 2:
        return
    untagged = []
    for number, line in enumerate(lines, start=first_line):
        tags = [tag for tag in map(tag_of, TAG.findall(line)) if tag in known]
        if tags and source.opening:
            raise InputError(
                f"a language comes from one place, but a language is named and line {number} "
                f"has the tag {tags[0]}: {line[:60]!r}; leave one of them out"
            )
        if line.strip() and not tags and not source.opening:
            untagged.append(number)
    if untagged:
        logger.warning(
            "this model writes several languages (%s), and %d of %d lines do not say which, the "
            "first of them line %d: it guesses; name one with --target-language, or begin every "
            "line with a tag such as %s",
            ", ".join(source.tagged_languages),
            len(untagged),
            len(lines),
            untagged[0],
            min(known),
        )


def in_languages(
    source: Tokenizer, target: Tokenizer, decoding: SearchConfig
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers for the languages that `decoding` names, in a multilingual model.

    If tags before the source name the target language, the source tokenizer puts them there, and
    source_language has no effect.

    Raises:
        InputError: a tokenizer does not have the language.
    """
    if source.tagged_languages:
        wanted = decoding.target_language
        return (source.with_tag(wanted) if wanted else source), target
    if decoding.source_language:
        source = source.with_language(decoding.source_language)
    if decoding.target_language:
        target = target.with_language(decoding.target_language)
    return source, target


def in_line(line: str, parts: Sequence[str], output: Output) -> Output:
    """The output with its alignment mapped to the words of the line; sentences without a space
    between them, as in Chinese, are pieces of one word."""
    if output.alignment is None:
        return output
    ends = [*accumulate(map(len, line.split()))]
    starts = accumulate(map(len, " ".join(parts).split()), initial=0)
    numbers = [bisect_right(ends, start) for start in starts]
    source = [""] * len(ends)
    for number, piece in zip(numbers, output.alignment.source, strict=False):
        source[number] += piece
    pairs = [(numbers[i], n) for i, n in output.alignment.pairs]
    return replace(output, alignment=replace(output.alignment, source=source, pairs=pairs))


def join_parts(texts: list[list[Output]], search: BeamConfig) -> list[Output]:
    """Join the best outputs of all parts into one, then the second best, and so on; each part has
    an EOS."""
    if len(texts) == 1:
        return texts[0]
    outputs = []
    for parts in zip(*texts, strict=True):
        tokens = [token for part in parts for token in part.tokens]
        log_prob = sum(part.log_prob for part in parts)
        scores = [part.token_scores for part in parts if part.token_scores]
        alignments = [part.alignment for part in parts if part.alignment]
        outputs.append(
            Output(
                text=joined_texts(part.text for part in parts),
                log_prob=log_prob,
                score=log_prob / search.length_penalty(len(tokens) + len(parts)),
                tokens=tokens,
                finished=all(part.finished for part in parts),
                token_scores=reduce(TokenScores.followed_by, scores) if scores else None,
                words=[word for part in parts for word in part.words],
                alignment=reduce(WordAlignment.followed_by, alignments) if alignments else None,
            )
        )
    return outputs


def sentences(line: str) -> list[str]:
    """The sentences of a line, in order. A sentence does not end before a lower-case letter."""
    parts = []
    start = 0
    for end in SENTENCE_END.finditer(line):
        if not line[end.end() :].lstrip(OPENING)[:1].islower():
            parts.append(line[start : end.end()].strip())
            start = end.end()
    return [part for part in (*parts, line[start:].strip()) if part]
