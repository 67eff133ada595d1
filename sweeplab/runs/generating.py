"""Generate text with a trained run, from a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch

from sweeplab.data.objectives import objective_of
from sweeplab.data.objectives.base import EOS, HOLE, Prompt
from sweeplab.errors import BadInput, Problem, conflict
from sweeplab.formatting import several
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.model.accounting import n_params
from sweeplab.model.generation import (
    Contrast,
    Next,
    Reader,
    Sampling,
    TokenSampler,
    beam_search,
    fill,
    hole_scores,
    sample,
)

if TYPE_CHECKING:
    from sweeplab.data.tokenizers import Tokenizer
    from sweeplab.tracking.models import LoadedRun

BROKEN = "\ufffd"  # how the first bytes of an incomplete character are decoded


@dataclass(frozen=True)
class Writer:
    """Generates text with a run: it continues a prompt, fills its holes ([MASK]), or writes its target.

    With an `amateur`, a smaller run with the same tokens, decoding is contrastive: it prefers tokens that the run
    predicts better.

    Raises:
        BadInput: the run cannot be contrasted with the amateur; says why.
    """

    run: LoadedRun
    text: str
    sampling: Sampling
    max_new_tokens: int
    seed: int = 0
    amateur: LoadedRun | None = None

    def __post_init__(self) -> None:
        amateur = self.amateur
        if amateur is None:
            return
        for run in (self.run, amateur):
            if fills_holes(run):
                what = f"--contrast needs decoders, and {run.run_id} is an encoder"
                raise BadInput(f"{what}, which fills each [MASK] instead")
        known = self.run.tokenizer.to_json(), self.run.special_tokens
        if known != (amateur.tokenizer.to_json(), amateur.special_tokens):
            raise BadInput(f"runs {self.run.run_id} and {amateur.run_id} have different tokens")
        most, count = n_params(self.run.model.shape), n_params(amateur.model.shape)
        if count >= most:
            what = f"--contrast {amateur.run_id} has {several(count, 'parameter')}, and {self.run.run_id} {most:,}"
            raise BadInput(Problem(what, "a smaller run"))

    @cached_property
    def prompt(self) -> Prompt:
        """Return the prompt as the run reads it."""
        return laid_out(self.run, self.text)

    def _next(self) -> Next:
        expert = reader(self.run, self.prompt)
        if self.amateur is None:
            return expert
        return Contrast(expert, reader(self.amateur, laid_out(self.amateur, self.text)))

    def tokens(self) -> Iterator[int]:
        """Yield the generated tokens, one by one."""
        sampler = TokenSampler(self.sampling, self.seed)
        if not fills_holes(self.run):
            yield from sample(self._next(), sampler, self.prompt, self.max_new_tokens)
            return
        model, prompt = self.run.model, self.prompt
        filled = fill(
            model.transformer, model.stacked, prompt, self.run.tokenizer.vocab_size, sampler
        )
        yield from (filled[place] for place in prompt.holes)

    def beams(self, n_beams: int) -> list[dict[str, Any]]:
        """Return the texts that a beam search finds, best first, each with its log-probability and its score.

        Raises:
            BadInput: the run is an encoder, or decoding is contrastive.
        """
        if fills_holes(self.run):
            raise BadInput("--beams needs a decoder: an encoder only fills each [MASK]")
        if self.amateur is not None:
            raise BadInput(conflict("--contrast", "--beams"))
        beams = beam_search(self._next(), self.prompt, n_beams, self.max_new_tokens)
        return [{**beam._asdict(), "text": "".join(self.words(beam.tokens))} for beam in beams]

    def ranked(self, most: int) -> list[list[dict[str, Any]]]:
        """Return the most probable tokens after the prompt, or in each of its holes, with their probabilities."""
        model, n_tokens = self.run.model, self.run.tokenizer.vocab_size
        if fills_holes(self.run):
            scores = hole_scores(model.transformer, model.stacked, self.prompt, n_tokens)
        else:
            written = list[int]()
            # The tokens of the first hole come after the marker that starts it.
            if len(self.prompt.markers) > 1:
                written.append(self.prompt.markers[0])
            scores = self._next()(torch.tensor([written], dtype=torch.long))
        best = scores.double().exp().topk(min(most, scores.shape[-1]))
        ranked = []
        for ids, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            ranked.append(
                [
                    {"token": named(self.run, token), "id": token, "probability": probability}
                    for token, probability in zip(ids, probabilities, strict=True)
                    if probability > 0
                ]
            )
        return ranked

    def words(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yield the text as its tokens come, with the prompt, unless the target is a text of its own."""
        return spaced(self._words(tokens), self.run.tokenizer.blank)

    def _words(self, tokens: Iterable[int]) -> Iterator[str]:
        tokenizer, texts = self.run.tokenizer, self.text.split(HOLE)
        if objective_of(self.run.values).learns != "text":
            yield from pieces(tokenizer, self._ordinary(tokens))
        elif fills_holes(self.run):
            filled = dict(zip(self.prompt.holes, tokens, strict=True))
            start = enumerate(self.prompt.start)
            yield from pieces(tokenizer, (filled.get(place, token) for place, token in start))
        elif self.prompt.source is None:
            yield texts[0]
            yield from pieces(tokenizer, self._ordinary(tokens))
        else:
            yield from self._spans(tokens, texts if len(texts) > 1 else [*texts, ""])

    def _ordinary(self, tokens: Iterable[int]) -> Iterator[int]:
        return takewhile(lambda token: token != self.prompt.end, tokens)

    def _spans(self, tokens: Iterable[int], texts: Sequence[str]) -> Iterator[str]:
        n_holes, span, here = len(texts) - 1, list[int](), -1
        yield texts[0]
        for token in self._ordinary(tokens):
            if token not in self.prompt.markers:
                span.append(token)
                continue
            yield self.run.tokenizer.decode(span)
            here, span = here + 1, []
            if here >= n_holes:
                break
            if here > 0:
                yield texts[here]
        yield self.run.tokenizer.decode(span)
        yield HOLE.join(texts[min(max(here, 0) + 1, n_holes) :])


def chosen(
    values: Hyperparameters, asked: Mapping[str, Any], greedy: bool = False
) -> tuple[Sampling, int]:
    """Return how to sample tokens, and how many at most: as asked, else by the run's hyperparameters.

    Raises:
        BadInput: a value is out of range; says what is allowed.
    """
    names = ("temperature", "top_k", "top_p", "max_new_tokens")
    settings = {name: getattr(values, name) for name in names}
    for name in settings:
        row, value = TABLE[name], asked.get(name)
        if value is None:
            continue
        try:
            settings[name] = row.check(value)
        except ValueError as error:
            what = f"--{name.replace('_', '-')} is {value}"
            raise BadInput(Problem(what, replace(row, optional=False).allowed)) from error
    most = settings.pop("max_new_tokens")
    if greedy:
        settings["temperature"] = 0.0
    return Sampling(**settings), most


def fills_holes(run: LoadedRun) -> bool:
    """Return whether a run is an encoder, which reads the text on both sides of a hole."""
    return not run.model.shape.of_family.sides[-1].causal


def named(run: LoadedRun, token: int) -> str:
    """Return a token's text, or the name of a special token."""
    if name := run.special_tokens.name_of(token):
        return f"<{name}>"
    return run.tokenizer.decode([token])


def laid_out(run: LoadedRun, text: str) -> Prompt:
    """Return a prompt as a run reads it.

    Raises:
        BadInput: a character has no token (says at which position), or the run cannot read such a prompt.
    """
    try:
        encoded = [run.tokenizer.encode(piece).tolist() for piece in text.split(HOLE)]
    except ValueError as error:
        raise BadInput(f"in the prompt, {error}") from None
    special = run.special_tokens
    prompt = objective_of(run.values).prompt(encoded, special, run.values)
    end = special.ids.get(EOS, run.tokenizer.end_of_text)
    if prompt.end is not None or prompt.holes or end is None:
        return prompt
    return replace(prompt, end=end, markers=[end])


def reader(run: LoadedRun, prompt: Prompt) -> Reader:
    """Return a reader of a prompt for a run."""
    model = run.model
    return Reader(model.transformer, model.stacked, prompt, run.tokenizer.vocab_size)


def pieces(tokenizer: Tokenizer, tokens: Iterator[int]) -> Iterator[str]:
    """Yield the text of tokens as its characters become complete: a character waits for its last byte."""
    known, shown = list[int](), 0
    for token in tokens:
        known.append(token)
        text = tokenizer.decode(known).rstrip(BROKEN)
        if len(text) > shown:
            yield text[shown:]
            shown = len(text)
    yield tokenizer.decode(known)[shown:]


def spaced(texts: Iterator[str], blank: str) -> Iterator[str]:
    """Yield texts with a `blank` between two that would otherwise run together."""
    last = " "
    for text in filter(None, texts):
        if blank and not last[-1].isspace() and not text[0].isspace():
            yield blank
        yield text
        last = text
