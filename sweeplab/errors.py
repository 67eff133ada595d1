"""Mistakes of the user, each reported in one line without a traceback; and the exit codes of a command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeplab.hyperparameters import ALIASES

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
# Other names of values, keys and commands, by their names here; those of hyperparameters are in ALIASES.
SYNONYMS = {
    "trials_per_cell": "n_trials trials num_trials",
    "workers": "n_jobs num_workers jobs",
    "tpe": "bayes bayesian bayesian_optimization hyperopt",
    "gp": "bayes bayesian bayesian_optimization gaussian_process botorch",
    "cmaes": "cma",
    "qmc": "sobol halton",
    "asha": "sha successive_halving",
    "adamw": "adam adam_w",
    "rmsnorm": "rms",
    "layernorm": "ln layer_norm",
    "rotary": "rope",
    "float32": "fp32 single",
    "bfloat16": "bf16",
    "float16": "fp16 half",
    "cuda": "gpu",
    "bpe": "byte_pair tiktoken",
    "wordpiece": "word_piece bert",
    "unigram": "sentencepiece spm",
    "char": "character characters",
    "run": "train start launch sweep tune optimize search",
    "list": "ls studies",
    "show": "status info describe",
    "best": "winner top",
    "rm": "delete remove del",
    "init": "new create",
    "plan": "preview validate check",
    "stop": "kill cancel abort",
    "logs": "log tail",
    "ui": "mlflow browse",
    "generate": "sample complete",
    "evaluate": "eval test",
}


@dataclass(frozen=True)
class Problem:
    """One problem of an input, with its place if it has one."""

    what: str
    allowed: str = ""
    nearest: str = ""
    file: Path | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        text = f"{place}: {self.what}" if place else self.what
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        if self.nearest:
            text += f"; did you mean {self.nearest!r}?"
        return " ".join(text.splitlines())  # a name or a library's message may have several lines


class BadInput(Exception):  # noqa: N818 - a mistake of the user, not an error of the program
    """An input is refused, with every problem found in it; the command line ends with exit code 2."""

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = [Problem(each) if isinstance(each, str) else each for each in problems]
        super().__init__("\n".join(str(each) for each in self.problems))


class StorageUnavailable(BadInput):
    """A study's storage does not answer or is full; nothing is lost, and the study continues once it answers."""


class DamagedFile(BadInput):
    """A file that sweeplab wrote is missing or damaged; says which, why, and the cure."""

    def __init__(self, file: Path, what: str, cure: str) -> None:
        self.file, self.what, self.cure = file, what, cure
        super().__init__(Problem(f"{what}; {cure}", file=file))


class TrackingUnavailable(Exception):  # noqa: N818 - a state of the world, not an error of the program
    """Tracking could not store something now; nothing is lost, and the caller may try again later."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that `name` probably means, also by synonyms, or an empty string."""
    from rapidfuzz import fuzz, process

    choices: Sequence[str] = sorted(known)
    word = re.sub(r"[\s-]+", "_", name.strip().lower())
    words = [
        word,
        ALIASES.get(word, ""),
        *(here for here, others in SYNONYMS.items() if word in others.split()),
    ]
    if meant := next((each for each in words if each in choices), ""):
        return meant
    match = process.extractOne(name.lower(), choices, scorer=fuzz.ratio, processor=str.lower, score_cutoff=60)
    return match[0] if match else ""
