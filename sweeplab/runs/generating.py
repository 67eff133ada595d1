"""Text from a trained run: what a person writes goes in, and text comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sweeplab.data.objectives import objective_of
from sweeplab.data.prompts import EOS, HOLE, Ids, Prompt
from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.model.accounting import n_params

if TYPE_CHECKING:
    from sweeplab.data.tokenizers import Tokenizer
    from sweeplab.model.generation import Next, Reader, Sampling
    from sweeplab.tracking.loading import LoadedRun

BROKEN = "\ufffd"  # what the bytes of a character are read as that is not whole yet


@dataclass(frozen=True)
class Writer:
    """Writes text by a run, from a prompt: goes on from it, fills its holes, or finds its target.

    The text is read as `encoded` where that is given: its pieces between holes.
    With an amateur, a run of the same tokens, tokens are chosen by how much better the run knows them.
    """

    run: LoadedRun
    text: str
    sampling: Sampling
    max_new_tokens: int
    seed: int = 0
    amateur: LoadedRun | None = None
    encoded: Sequence[Ids] | None = None

    def __post_init__(self) -> None:
        """Check what goes together.

        Raises:
            BadInput: says what does not.
        """
        if self.amateur is not None:
            check_amateur(self.run, self.amateur)

    @property
    def is_filled(self) -> bool:
        """Say whether the run is an encoder, which finds all around a hole at once."""
        return fills_holes(self.run)

    @cached_property
    def prompt(self) -> Prompt:
        """Return the prompt as the run reads it."""
        return laid_out(self.run, self.text, self.encoded)

    def _next(self) -> Next:
        """Return what scores the next token, and has read nothing yet."""
        from sweeplab.model.generation import Contrast

        expert = reader(self.run, self.prompt)
        if self.amateur is None:
            return expert
        try:
            prompt = laid_out(self.amateur, self.text)
        except BadInput as error:
            raise BadInput(f"--contrast {self.amateur.run_id}: {error}") from error
        return Contrast(expert, reader(self.amateur, prompt))

    def tokens(self) -> Iterator[int]:
        """Yield what is found, token by token."""
        from sweeplab.model.generation import Sampler, fill, sample

        sampler = Sampler(self.sampling, self.seed)
        if not self.is_filled:
            yield from sample(self._next(), sampler, self.prompt, self.max_new_tokens)
            return
        model, prompt = self.run.model, self.prompt
        found = fill(model.transformer, model.stacked, prompt, self.run.tokenizer.vocab_size, sampler)
        yield from (found[place] for place in prompt.holes)

    def beams(self, n_beams: int) -> list[dict[str, Any]]:
        """Return the texts that a beam search finds, best first, each with its log-probability and its score.

        Raises:
            BadInput: there is nothing that beams could search.
        """
        from sweeplab.model.generation import beam_search

        if self.is_filled:
            raise BadInput("an encoder has no beams: it fills holes, and finds no token after another")
        if self.amateur is not None:
            raise BadInput("beams search for what is likely, and a contrast is no likelihood: one of them")
        found = beam_search(self._next(), self.prompt, n_beams, self.max_new_tokens)
        return [{**beam._asdict(), "text": "".join(self.words(beam.tokens))} for beam in found]

    def ranked(self, most: int) -> list[list[dict[str, Any]]]:
        """Return the likeliest tokens after the prompt, or in each of its holes, with their probabilities."""
        import torch

        from sweeplab.model.generation import hole_scores

        model, n_tokens = self.run.model, self.run.tokenizer.vocab_size
        if self.is_filled:
            scores = hole_scores(model.transformer, model.stacked, self.prompt, n_tokens)
        else:
            # What is found of the first hole comes after the marker that begins it.
            first_marker = self.prompt.markers[:1] if self.prompt.markers[1:] else ()
            scores = self._next()(torch.tensor([[*first_marker]], dtype=torch.long))
        best = scores.double().exp().topk(min(most, scores.shape[-1]))
        return [
            [
                {"token": named(self.run, token), "id": token, "probability": probability}
                for token, probability in zip(*row, strict=True)
                if probability > 0
            ]
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def words(self, tokens: Iterator[int] | Sequence[int]) -> Iterator[str]:
        """Yield the text as its tokens come: with the prompt in it, but where the target is another text."""
        return spaced(self._words(tokens), self.run.tokenizer.blank)

    def _words(self, tokens: Iterator[int] | Sequence[int]) -> Iterator[str]:
        tokenizer, texts = self.run.tokenizer, self.text.split(HOLE)
        if objective_of(self.run.values).of_pairs:
            yield from pieces(tokenizer, self._ordinary(tokens))
        elif self.is_filled:
            found = dict(zip(self.prompt.holes, tokens, strict=True))
            start = enumerate(self.prompt.start)
            yield from pieces(tokenizer, (found.get(place, token) for place, token in start))
        elif self.prompt.source is None:
            yield texts[0]
            yield from pieces(tokenizer, self._ordinary(tokens))
        else:
            yield from self._spans(tokens, texts if len(texts) > 1 else [*texts, ""])

    def _ordinary(self, tokens: Iterator[int] | Sequence[int]) -> Iterator[int]:
        """Yield tokens up to the end."""
        for token in tokens:
            if token == self.prompt.end:
                return
            yield token

    def _spans(self, tokens: Iterator[int] | Sequence[int], texts: Sequence[str]) -> Iterator[str]:
        """Yield the texts around holes, with the spans that are found between them."""
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
            yield texts[here] if here else ""
        yield self.run.tokenizer.decode(span)
        yield HOLE.join(texts[min(max(here, 0) + 1, n_holes) :])


def chosen(values: Hyperparameters, given: Mapping[str, Any], greedy: bool = False) -> tuple[Sampling, int]:
    """Return how tokens are drawn and how many at most: as given, else as the run's own hyperparameters say.

    Raises:
        BadInput: something is out of range; says what is allowed.
    """
    from sweeplab.model.generation import Sampling

    settings = {}
    for name in ("temperature", "top_k", "top_p", "max_new_tokens"):
        row = TABLE[name]
        own = given.get(name)
        try:
            settings[name] = getattr(values, name) if own is None else row.check(own)
        except ValueError as error:
            what = f"--{name.replace('_', '-')} is {own}"
            raise BadInput(Problem(what, replace(row, optional=False).allowed)) from error
    most = settings.pop("max_new_tokens")
    return Sampling(**settings, greedy=greedy), most


def fills_holes(run: LoadedRun) -> bool:
    """Say whether a run is an encoder."""
    return not run.model.shape.of_family.sides[-1].causal


def check_amateur(run: LoadedRun, amateur: LoadedRun) -> None:
    """Make sure that a run can be contrasted with a smaller one.

    Raises:
        BadInput: says what is against it.
    """
    for each in (run, amateur):
        if fills_holes(each):
            raise BadInput(
                f"an encoder fills holes, and contrasts nothing: --contrast needs a decoder, and {each.run_id} is none"
            )
    mine, other = ((each.tokenizer.to_json(), each.special_tokens) for each in (run, amateur))
    if mine != other:
        what = "tokenizers" if mine[0] != other[0] else "special tokens"
        raise BadInput(f"runs {run.run_id} and {amateur.run_id} have different {what}")
    most, count = (n_params(each.model.shape) for each in (run, amateur))
    if count >= most:
        what = f"--contrast {amateur.run_id} has {count:,} parameters, and {run.run_id} {most:,}"
        raise BadInput(Problem(what, "a smaller run"))


def named(run: LoadedRun, token: int) -> str:
    """Return a token's text, or the name of one that stands for none."""
    name = run.special_tokens.name_of(token)
    return f"<{name}>" if name else run.tokenizer.decode([token])


def laid_out(run: LoadedRun, text: str, encoded: Sequence[Ids] | None = None) -> Prompt:
    """Return a prompt as a run reads it; `encoded` are its pieces between holes, where they are known.

    Raises:
        BadInput: a character has no token, with its place; or the run cannot read such a prompt.
    """
    given = _encoded(run.tokenizer, text) if encoded is None else encoded
    special = run.special_tokens
    prompt = objective_of(run.values).prompt(given, special, run.values)
    end = special.ids.get(EOS, run.tokenizer.end_of_text)
    if prompt.end is not None or prompt.holes or end is None:
        return prompt
    return replace(prompt, end=end, markers=[end])


def _encoded(tokenizer: Tokenizer, text: str) -> list[Ids]:
    """Return the tokens of the pieces between holes."""
    found, place = list[Ids](), 0
    for piece in text.split(HOLE):
        try:
            found.append(tokenizer.encode(piece).tolist())
        except ValueError as error:
            unknown = next((at for at, each in enumerate(piece) if not _knows(tokenizer, each)), None)
            if unknown is None:
                raise BadInput(f"of the prompt, {error}") from None
            what = f"the prompt's character {piece[unknown]!r} at {place + unknown}"
            raise BadInput(f"{what} is none of the {tokenizer.name} tokenizer's") from None
        place += len(piece) + len(HOLE)
    return found


def _knows(tokenizer: Tokenizer, character: str) -> bool:
    try:
        tokenizer.encode(character)
    except ValueError:
        return False
    return True


def reader(run: LoadedRun, prompt: Prompt) -> Reader:
    """Return what reads a prompt by a run."""
    from sweeplab.model.generation import Reader

    model = run.model
    return Reader(model.transformer, model.stacked, prompt, run.tokenizer.vocab_size)


def pieces(tokenizer: Tokenizer, tokens: Iterator[int]) -> Iterator[str]:
    """Yield the text of tokens as it becomes whole: a character's first bytes wait for its last."""
    found: list[int] = []
    shown = 0
    for token in tokens:
        found.append(token)
        text = tokenizer.decode(found).rstrip(BROKEN)
        if len(text) > shown:
            yield text[shown:]
            shown = len(text)
    yield tokenizer.decode(found)[shown:]


def spaced(texts: Iterator[str], blank: str) -> Iterator[str]:
    """Yield texts with a blank before each that would run into the one before it."""
    last = " "
    for text in filter(None, texts):
        if blank and not last[-1].isspace() and not text[0].isspace():
            yield blank
        yield text
        last = text
