"""eosin fix"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from eosin.auditing.audit import audit
from eosin.cli.completions import parse_completion, write_completions
from eosin.cli.model import (
    LoadedModel,
    add_decoding_options,
    choose_prefixes,
    name_contexts,
    open_model,
    parse_one_decoder,
)
from eosin.cli.numbers import whole_number
from eosin.cli.progress import count_events
from eosin.cli.terminal import escape_for_terminal
from eosin.contracts import Decoder
from eosin.decoding.job import Job, Prefixes, window_of
from eosin.decoding.samplers import Greedy
from eosin.errors import BadInput
from eosin.events import Event
from eosin.loading import import_hub
from eosin.outcome import Completion
from eosin.remedies.advice import (
    Advice,
    advise,
    check_budget,
    describe_late,
    propose_training,
    write_decode_code,
    write_generate_code,
)
from eosin.remedies.candidates import AS_IT_IS, Candidate, add_floor, list_unfloored
from eosin.remedies.measurement import Measurement, score_completions, tabulate_measurements
from eosin.report.tables import render_text
from eosin.storage.files import HUB
from eosin.storage.json_lines import parse_lines

DESCRIPTION = """MODEL is the directory of a trained run, hf: and a model of Hugging Face, or py:FILE:FUNCTION. It is
decoded as it is: a model of Hugging Face with its own generation config, others greedily, unless --decoder names
another way. Then with each remedy that needs no training, on the same prompts and random numbers: the eos ids and stop
strings that are missing, the eos-keeping form of the truncation, a floor under p(eos) that ends every decoding within
the budget. Each is added to the ones before. The same command resumes what was interrupted.

examples:
  eosin fix hf:my-model --prompts prompts.jsonl --budget 500
  eosin fix hf:my-model --prompts prompts.txt --chat --budget 500 --decoder nucleus:0.9
  eosin fix runs/lstm --budget 100 --count 200
  eosin fix demo --budget 100"""

MOST_BUDGET = 10**9
COUNT = 300
"""Contexts of a corpus."""
LONGER, LEAST_STEPS = 2, 200
"""What ends by itself after the budget is looked for up to so many budgets, and at least so many tokens."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_decoding_options(
        parser, "prompts", longest=f"{LONGER} budgets, at least {LEAST_STEPS}, as far as the window goes"
    )
    add(
        "--budget",
        type=whole_number(1, MOST_BUDGET),
        required=True,
        metavar="N",
        help="tokens within which decoding should end",
    )
    add(
        "--decoder",
        "--decoders",
        metavar="DECODER",
        help="what to fix (default: the generation config of hf: models; greedy for others)",
    )
    add("--count", type=whole_number(1), metavar="N", help=f"how many prompts (default: all) or contexts ({COUNT})")
    add("--pool", type=int, metavar="N", help="rows decoded at a time (default: 1024; hf: models 64)")
    add("--out", type=Path, metavar="FOLDER", help="folder of records and completions (default: fixes/NAME)")


def run(options: argparse.Namespace) -> None:
    decoder = None if options.decoder is None else parse_one_decoder(options.decoder)
    loaded = open_model(options.model, options)
    is_hub = loaded.name.startswith(HUB)
    if loaded.stop and not is_hub:
        raise BadInput(f"--stop is for {HUB} models here, and {loaded.name} is none: leave it out")
    prefixes = choose_prefixes(loaded, options, options.count or (None if options.prompts else COUNT))
    options.max_steps = choose_longest(loaded, prefixes, options)
    candidates = list_candidates(loaded, decoder)
    trial = Trial(loaded, prefixes, options)
    measured = list(trial.measure_all(candidates))
    write_code: Callable[[Candidate], str] = (
        partial(write_generate_code, named=candidates[0].plain.eos_ids, budget=options.budget)
        if is_hub
        else partial(write_decode_code, name=loaded.name, budget=options.budget)
    )
    base = loaded.name.removeprefix(HUB) if is_hub else None
    advice = advise(measured, write_code, propose_training(options.budget, base))
    faults = list_faults(loaded) if is_hub else []
    if options.json:
        print(json.dumps(to_json(measured, advice, faults, options)))
    else:
        print("\n".join(map(escape_for_terminal, format_fix(measured, advice, faults, trial))))


def choose_longest(loaded: LoadedModel, prefixes: Prefixes, options: argparse.Namespace) -> int:
    """How long completions may get: a while longer than the budget, to see what it would cut."""
    if options.max_steps is not None:
        if options.max_steps < options.budget:
            raise BadInput(f"--max-steps {options.max_steps} is less than --budget {options.budget}: give at least it")
        return options.max_steps
    window, wanted = window_of(loaded.model), max(LONGER * options.budget, LEAST_STEPS)
    left = wanted if window is None else window - max(map(len, prefixes)) + 1
    return max(options.budget, min(wanted, left))


def list_candidates(loaded: LoadedModel, decoder: Decoder | None) -> list[Candidate]:
    """The model as it is, and every remedy but the floor."""
    if not loaded.name.startswith(HUB):
        baseline = Candidate(AS_IT_IS, loaded.model, decoder or Greedy())
        return [baseline, *list_unfloored(baseline, loaded.model, None)]
    ignored = list(import_hub("sampling").list_ignored(loaded.model.model.generation_config))
    if ignored:
        sys.stderr.write(f"eosin fix: measured without {', '.join(ignored)} of the generation config\n")
    return import_hub("candidates").list_hub_candidates(loaded.model, loaded.tokenizer, decoder, loaded.stop)


def list_faults(loaded: LoadedModel) -> list[str]:
    """What `eosin doctor` calls wrong."""
    files = import_hub("candidates").open_model_files(loaded.model, loaded.tokenizer)
    found = import_hub("doctor").examine(files)
    return [f"{each.what}; fix: {each.fix}" for each in found if each.wrong]


@dataclass(frozen=True)
class Trial:
    """A model and the prompts on which candidates are measured."""

    loaded: LoadedModel
    prefixes: Prefixes
    options: argparse.Namespace

    @property
    def folder(self) -> Path:
        run, beside = self.loaded.run, self.loaded.audits
        usual = run.folder / "fixes" if run and run.audits else Path("fixes") / beside.name
        return self.options.out or usual

    def measure_all(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """The model as it is and, unless all of it ends within the budget, the remedies; the floor comes last."""
        baseline = natural = self.measure(candidates[0])
        yield baseline
        check_budget(baseline)
        if not baseline.ratio.count:
            return
        for candidate in candidates[1:]:
            measured = self.measure(candidate, baseline)
            natural = measured if candidate.decoder == baseline.candidate.decoder else natural
            check_budget(natural)
            yield measured
        floored = add_floor(candidates[-1], self.options.budget, natural.ended)
        if floored:
            yield self.measure(floored, baseline)

    def measure(self, candidate: Candidate, baseline: Measurement | None = None) -> Measurement:
        completions = self.complete(candidate)
        rescored = None
        if candidate.floor and baseline:
            job = Job.create(candidate.plain, self.prefixes, max_steps=1)
            rescored = score_completions(job, completions, baseline.completions)
        options = self.options
        return Measurement(candidate, completions, options.budget, options.max_steps, baseline, rescored)

    def complete(self, candidate: Candidate) -> list[Completion]:
        """The completions of all prompts. Those that were counted before are read from their file."""
        options, loaded, count = self.options, self.loaded, len(self.prefixes)
        out = self.folder / self._name_records(candidate)
        path = out.with_suffix(".completions")

        def describe(index: int) -> dict[str, str]:
            prefix = loaded.decode_prefix(list(map(int, self.prefixes[index])))
            return {"model": loaded.describe()["run"], "prefix": prefix}

        with (
            count_events("completion", count) as progress,
            write_completions(path, out, loaded.tokenizer, describe) as writer,
        ):

            def watch(event: Event) -> None:
                progress(event)
                writer(event)

            try:
                audit(
                    candidate.model,
                    self.prefixes,
                    [candidate.decoder],
                    max_steps=options.max_steps,
                    seed=options.seed,
                    pool=options.pool,
                    proofs=not options.no_proofs,
                    out=out,
                    about=loaded.describe() | {"contexts_from": name_contexts(options)} | loaded.describe_precision(),
                    text_of=loaded.tokenizer.decode,
                    stop=candidate.stop,
                    watch=watch,
                )
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"finished shards are in {out}; the same command continues") from None
        found = list(parse_lines(path, "completions", "a completion", parse_completion))
        if len(found) != count:
            raise BadInput(f"{path} has {len(found):,} completions of {count:,}: delete {out} to decode them again")
        return sorted(found, key=lambda each: each.index)

    def _name_records(self, candidate: Candidate) -> str:
        options, floor = self.options, candidate.floor
        endings = [*map(int, candidate.plain.eos_ids), *candidate.stop_strings]
        details = [str(candidate.decoder), *endings, *([floor.epsilon, floor.grace] if floor else [])]
        digest = sha256(json.dumps(details).encode()).hexdigest()[:8]
        parts = [re.sub(r"\W+", "-", candidate.name), name_contexts(options), len(self.prefixes), options.max_steps]
        how = [options.seed, *self.loaded.describe_precision().values(), *["no-proofs"] * options.no_proofs, digest]
        return "-".join(map(str, [*parts, *how])) + ".jsonl"


def format_fix(measured: list[Measurement], advice: Advice, faults: list[str], trial: Trial) -> Iterator[str]:
    """For people: the table, what is recommended and why, the code, and what would be better."""
    options, count = trial.options, len(trial.prefixes)
    title = (
        f"{options.model}, {measured[0].candidate.decoder}, {count:,} of {name_contexts(options)}: r_L at "
        f"L = {options.budget:,}, decoded to {options.max_steps:,} tokens"
    )
    yield from render_text(tabulate_measurements(measured, title)).splitlines()
    yield ""
    for fault in faults:
        yield f"doctor: {fault}"
    if measured[0].late.count:
        yield f"budget: {describe_late(measured[0])}"
    if advice.name:
        yield f"recommended: {advice.name}"
    yield from advice.why
    if advice.code:
        yield from ("", *(f"    {line}".rstrip() for line in advice.code.splitlines()), "")
    if advice.better:
        yield from advice.better.splitlines()
    yield f"records: {trial.folder}"


def to_json(
    measured: list[Measurement], advice: Advice, faults: list[str], options: argparse.Namespace
) -> dict[str, Any]:
    """For machines."""
    return {
        "budget": options.budget,
        "max_steps": options.max_steps,
        "contexts": len(measured[0].completions),
        "late": measured[0].late.count,
        "candidates": [each.as_json() for each in measured],
        "doctor": faults,
        **advice.as_json(),
    }
