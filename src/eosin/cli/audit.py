"""eosin audit"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec import structs

from eosin.auditing.audit import Audit, audit
from eosin.auditing.logs import (
    LOG,
    audit_log,
    measure_looping,
    measure_unended,
    tabulate_log,
    tabulate_log_loops,
)
from eosin.auditing.shards import AuditPlan, choose_share
from eosin.auditing.units import count_unit
from eosin.bundled_runs import TWINS
from eosin.cli.completions import Examples, write_completions
from eosin.cli.model import (
    LoadedModel,
    add_decoding_options,
    choose_max_steps,
    choose_prefixes,
    name_contexts,
    open_model,
    parse_decoders,
)
from eosin.cli.numbers import real_number, whole_number
from eosin.cli.progress import announce_decoder, count_events
from eosin.cli.terminal import escape_for_terminal
from eosin.cli.workers import add_worker_options, choose_threads, has_workers, hire_crew, run_and_tell
from eosin.contracts import Decoder
from eosin.devices import use_threads
from eosin.errors import BadInput
from eosin.events import Event
from eosin.loading import import_hub
from eosin.proofs.saved_cycles import cycles_path
from eosin.records.reading import examples_path
from eosin.records.statistics import Share
from eosin.report.audits import tabulate_audit
from eosin.report.origin import SOFTMAX, Origin, index_origins, origin_path, read_origins, save_origin
from eosin.report.tables import render_text
from eosin.report.verdict import propose_fix, render_verdict, write_verdict
from eosin.scale.crew import Crew, Unit
from eosin.scale.worker import Work
from eosin.storage.files import resolve_path
from eosin.training.run import Run

DESCRIPTION = """MODEL is the directory of a trained run, hf: and a model of Hugging Face, or py:FILE:FUNCTION.
Records are written as shards of contexts finish. The same command prints them again, and resumes an audit that is
not finished. `demo` (a tanh-RNN) and `demo-lstm` are small models that come with Eosin; each is audited with its
self-terminating twin. MODEL may also be log: and a file of generations: completions of Eosin, responses of
OpenAI-compatible servers, samples of lm-evaluation-harness, logs of Inspect, or JSON lines with a text. Nothing is
decoded then.

examples:
  eosin audit demo
  eosin audit runs/lstm --decoders greedy,beam:4,nucleus:0.2,consistent-nucleus:0.2
  eosin audit runs/lstm --decoders greedy --contexts random --count 2000 --max-steps 500
  eosin audit runs/lstm --decoders nucleus:0.9 --fail-above 0.01 --fail-on upper
  eosin audit hf:my-model --prompts prompts.txt --decoders greedy,nucleus:0.9 --max-steps 500
  eosin audit py:my_model.py:load --prompts prompts.txt --decoders greedy,nucleus:0.9
  eosin audit runs/lstm --decoders ancestral,consistent-nucleus:0.9 --survival
  eosin audit runs/lstm --workers 8
  eosin audit runs/lstm --on ray://head:10001
  eosin audit log:generations.jsonl"""

PAPER_DECODERS = "ancestral,greedy,beam:2,beam:4,top-k:2,top-k:4,nucleus:0.2,nucleus:0.4"
DEMO_DECODERS, DEMO_COUNT = "ancestral,greedy,beam:2,stop=first,nucleus:0.2,consistent-nucleus:0.2", 300
"""The usual decoders and contexts for a bundled model: seconds, not minutes."""
NO_REASON = "not ended: the log does not say how each generation ended"
FILE_OPTIONS = ("out", "completions")
FAIL_ON = {"ratio": "r_L", "lower": "the lower end of the 95% interval", "upper": "the upper end of the 95% interval"}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_decoding_options(parser, "prompts")
    add(
        "--decoders",
        "--decoder",
        metavar="LIST",
        help="comma-separated decoders (default: the paper's eight; demo: five; hf: models: greedy, the sampling of "
        "the generation config, and its eos-keeping form)",
    )
    add("--count", type=whole_number(1), metavar="N", help=f"how many contexts (default: all; demo: {DEMO_COUNT})")
    add("--pool", type=int, metavar="N", help="rows decoded at a time (default: 1024; hf: models 64)")
    add("--field", metavar="NAME", help=f"of {LOG}FILE: the field with the text, as in a.b.0 (default: known names)")
    add("--wide", action="store_true", help="print all columns: also repetition, distinct completions, onsets of loops")
    add("--out", type=Path, metavar="FILE", help="file of records (default: a name in audits/)")
    add(
        "--completions",
        type=Path,
        metavar="FILE",
        help="write each completion there as a JSON line; for a proved loop, the tokens so far and the cycle",
    )
    add(
        "--survival",
        action="store_true",
        help="estimate the ratio along paths without eos instead of counting: for samplers and small ratios",
    )
    add(
        "--follow-loops",
        type=real_number(0.001, 1, "a share from 0.001 to 1, as in 0.1"),
        metavar="SHARE",
        help="of loops without a proof, decode only this random share to the limit, and correct the count by it; 1 "
        "decodes all (default: 3.5 / sqrt(contexts) for transformers and other models without proofs; 1 for others, "
        "and for fewer than 100 contexts)",
    )
    add(
        "--fail-above",
        type=real_number(0, 1, "a ratio from 0 to 1, as in 0.01"),
        metavar="RATIO",
        help="exit with 1 if r_L of a decoder is above this",
    )
    add(
        "--fail-on",
        choices=list(FAIL_ON),
        help="compare --fail-above with the ratio (default), or with the lower or upper end of its 95%% interval",
    )
    add_worker_options(parser)


def run(options: argparse.Namespace) -> None:
    check_options(options)
    if options.model.startswith(LOG):
        run_log(options)
        return
    if options.field is not None:
        raise BadInput(f"--field is for logs ({LOG}FILE), and {options.model} is a model: leave it out")
    is_demo = options.model in TWINS
    names = TWINS.get(options.model, (options.model,))
    set_defaults(options)
    audits: dict[str, Audit] = {}
    files: list[Path] = []
    with use_threads(choose_threads(options)), hire_crew(options) if has_workers(options) else nullcontext() as crew:
        for name in names:
            given = rename_files(options, name) if len(names) > 1 else options
            audits[name], out = audit_model(name, given, crew)
            files.append(out)
    if options.json:
        tables = {name: audit_to_json(result) for name, result in audits.items()}
        print(json.dumps(tables if is_demo else tables[options.model]))
    else:
        print(format_audits(list(audits.values()), files, options))
    if options.fail_above is not None:
        exit_on_failures(list(find_failures({name: list_ratios(each) for name, each in audits.items()}, options)))


def set_defaults(options: argparse.Namespace) -> None:
    """Those of a model that comes with the package."""
    if options.decoders is None and options.model in TWINS:
        options.decoders = DEMO_DECODERS
    if options.count is None and options.model in TWINS and options.prompts is None:
        options.count = DEMO_COUNT


def run_log(options: argparse.Namespace) -> None:
    """Audit generations that are there already."""
    for key in (
        "decoders",
        "prompts",
        "contexts",
        "count",
        "max_steps",
        "pool",
        "out",
        "completions",
        "survival",
        "follow_loops",
        "workers",
        "on",
    ):
        if vars(options)[key] not in (None, False):
            raise BadInput(f"--{key.replace('_', '-')} decides a decoding, and a log has its generations: leave it out")
    found = audit_log(Path(options.model.removeprefix(LOG)), options.field)
    shares = {model: measure_unended(causes) for model, causes in found.causes.items()}
    if options.json:
        print(json.dumps({model: log_to_json(causes) for model, causes in found.causes.items()}))
    else:
        loops = ["", render_text(tabulate_log_loops(found))] if found.loops else []
        unknown = [NO_REASON] if None in shares.values() else []
        print("\n".join([render_text(tabulate_log(found)), *unknown, *loops]))
    if options.fail_above is None:
        return
    if None in shares.values():
        raise BadInput("--fail-above needs to know how each generation ended, and this log does not say")
    exit_on_failures(list(find_failures({model: {"log": share} for model, share in shares.items() if share}, options)))


def log_to_json(causes: Counter[str]) -> dict[str, Any]:
    """For machines."""
    shares = {"ratio": measure_unended(causes), "looping": measure_looping(causes)}
    known = {name: share and {"value": share.value, "interval": share.interval()} for name, share in shares.items()}
    return {"generations": causes.total(), "causes": causes, **known}


def check_options(options: argparse.Namespace) -> None:
    if options.fail_on is not None and options.fail_above is None:
        raise BadInput(f"--fail-on {options.fail_on} needs a limit: --fail-above RATIO")
    for key in FILE_OPTIONS:
        path = vars(options)[key]
        if path is not None and (not path.name or (path.exists() and not path.is_file())):
            raise BadInput(f"--{key} names a file, as in {key}.jsonl; got {str(path)!r}, a folder or a device")


def rename_files(options: argparse.Namespace, name: str) -> argparse.Namespace:
    """The options with files for one of several models."""
    files = {key: vars(options)[key] for key in FILE_OPTIONS}
    renamed = {key: path and path.with_name(f"{path.stem}-{name}{path.suffix}") for key, path in files.items()}
    return argparse.Namespace(**{**vars(options), **renamed})


def open_audit(name: str, options: argparse.Namespace) -> tuple[LoadedModel, dict[str, Any]]:
    """A model, and what `eosin.audit` is asked about it."""
    given = None if options.decoders is None else parse_decoders(options.decoders)
    loaded = open_model(name, options)
    prefixes = choose_prefixes(loaded, options, options.count)
    decoders = choose_decoders(loaded) if given is None else given
    options.max_steps = choose_max_steps(loaded, prefixes, options)
    if options.follow_loops is None and not options.survival:
        options.follow_loops = choose_share(loaded.model, prefixes)
    return loaded, {
        "model": loaded.model,
        "prefixes": prefixes,
        "decoders": decoders,
        "max_steps": options.max_steps,
        "seed": options.seed,
        "pool": options.pool,
        "proofs": not options.no_proofs,
        "survival": options.survival,
        "follow_loops": options.follow_loops or 1.0,
        "about": {**loaded.describe(), "contexts_from": name_contexts(options), **loaded.describe_precision()},
        "text_of": loaded.tokenizer.decode,
        "stop": loaded.stop,
    }


def open_work(options: argparse.Namespace) -> Work:
    """What a worker does: it counts shards of the models that the units name."""
    set_defaults(options)

    @cache
    def plan(name: str) -> AuditPlan:
        return AuditPlan.create(**open_audit(name, argparse.Namespace(**vars(options)))[1])

    return lambda unit, watch: count_unit(plan(unit["model"]), unit, watch)


def audit_model(name: str, options: argparse.Namespace, crew: Crew | None) -> tuple[Audit, Path]:
    """An audit of a model, and the file of its records."""
    loaded, question = open_audit(name, options)
    prefixes, decoders = question["prefixes"], question["decoders"]
    out = options.out or loaded.audits / name_records(options, loaded, len(prefixes))
    taken = map(resolve_path, (out, cycles_path(out), examples_path(out), origin_path(out)))
    if options.completions and resolve_path(options.completions) in taken:
        raise BadInput(f"--completions and --out are one file, {options.completions}; name two")

    def describe(index: int) -> dict[str, str]:
        return {"model": loaded.describe()["run"], "prefix": loaded.decode_prefix(list(map(int, prefixes[index])))}

    with (
        count_events("completion", len(prefixes) * len(decoders)) as progress,
        write_completions(options.completions, out, loaded.tokenizer, describe) as writer,
        write_completions(examples_path(out), out, loaded.tokenizer, describe, Examples()) as keeper,
    ):

        def watch(event: Event) -> None:
            progress(event)
            announce_decoder(event, sys.stderr)
            writer(event)
            keeper(event)

        try:
            result = audit(
                **question, out=out, watch=watch, run=partial(run_shards, options, crew, name) if crew else None
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"finished shards are in {out}; the same command continues") from None
    if loaded.run is not None:
        save_origin(out, describe_origin(loaded.run, name_contexts(options), len(prefixes)))
    return result, out


def run_shards(options: argparse.Namespace, crew: Crew, name: str, units: Mapping[str, Unit]) -> Iterator[Event]:
    return run_and_tell(options, crew, {key: {**unit, "model": name} for key, unit in units.items()})


def choose_decoders(loaded: LoadedModel) -> Sequence[Decoder]:
    """Those of the paper, or of the model's own generation config; notes say which, and what they leave out."""
    if not loaded.decoders:
        return parse_decoders(PAPER_DECODERS)
    ignored = list(import_hub("sampling").list_ignored(loaded.model.model.generation_config))
    left_out = f"; without {', '.join(ignored)} of the generation config" if ignored else ""
    sys.stderr.write(
        f"eosin audit: decoders {', '.join(map(str, loaded.decoders))}{left_out}; --decoders changes that\n"
    )
    return loaded.decoders


def describe_origin(run: Run, contexts_from: str, count: int) -> Origin:
    """What the page says of a run besides its counts, on the first contexts of a split or of other texts."""
    data, head = run.table["data"], run.table.get("head", {})
    architecture = (
        [run.table.get(name, {}) for name in ("core", "output")],
        run.table.get("pretrained", {}).get("model"),
    )
    is_split = contexts_from in run.corpus.splits
    lengths = run.corpus.count_after_context(contexts_from)[:count].tolist() if is_split else ()
    return Origin(
        run=run.origin["run"],
        contexts_from=contexts_from,
        head=head.get("kind", SOFTMAX),
        network=json.dumps([run.corpus.digest, architecture], sort_keys=True),
        text=str(data.get("source", "")),
        prefix_length=run.corpus.recipe.context,
        lengths=Counter(lengths),
    )


def name_records(options: argparse.Namespace, loaded: LoadedModel, count: int) -> str:
    parts = [name_contexts(options), count, options.max_steps, options.seed, *loaded.describe_precision().values()]
    how = ["survival"] * options.survival + ["no-proofs"] * (options.no_proofs and not options.survival)
    share = options.follow_loops or 1
    followed = [f"follow-{share:g}"] if share < 1 else []
    return "-".join(map(str, [*parts, *how, *followed])) + ".jsonl"


def format_audits(audits: list[Audit], files: list[Path], options: argparse.Namespace) -> str:
    """For people: the ratios, the loops, the files, and at the end the verdict with the fix."""
    records = [record for result in audits for record in result.by_decoder.values()]
    parts = ["\n\n".join(map(render_text, tabulate_audit(records, options.wide)))]
    if not all(result.steady for result in audits):
        parts += [
            "",
            "this model rounds differently in other batches: with another --pool, near-ties may fall otherwise",
        ]
    for out in files:
        parts += ["", f"records: {out}"]
        if cycles_path(out).exists():
            parts += [f"certificates: {cycles_path(out)} (eosin certify --check)"]
    names = map(str, files) if options.out else [options.model]
    parts += [f"page: {shlex.join(['eosin', 'report', *names, '--html', 'page.html'])}"]
    origins = index_origins(read_origins(files))
    fix = propose_fix(records, origins=origins, model=options.model)
    verdict = render_verdict(list(write_verdict(records, origins=origins)), fix)
    prompts = ["--prompts", str(options.prompts), *["--chat"] * options.chat] if options.prompts else []
    compare = ["eosin", "fix", options.model, *prompts, "--budget", str(records[0].signature.max_steps)]
    more = [f"compare the fixes: {shlex.join(compare)}"] if fix else []
    return "\n".join([*parts, "", *map(escape_for_terminal, [*verdict, *more])])


def audit_to_json(result: Audit) -> dict[str, dict[str, Any]]:
    """For machines."""
    return {
        decoder: {
            "ratio": record.ratio.value,
            "interval": record.ratio.interval(),
            "contexts": record.counts.contexts,
            "causes": record.counts.causes,
            "tokens": record.counts.tokens,
            "sampled_loops": structs.asdict(record.counts.sampled),
            "loops": [{"tokens": tokens, **loop.to_table()} for tokens, loop in record.counts.loops.items()],
        }
        for decoder, record in result.by_decoder.items()
    }


def list_ratios(result: Audit) -> dict[str, Share]:
    return {decoder: record.ratio for decoder, record in result.by_decoder.items()}


def find_failures(ratios: Mapping[str, Mapping[str, Share]], options: argparse.Namespace) -> Iterator[str]:
    """A sentence for each decoder of each model that is above the limit."""
    limit, key = options.fail_above, options.fail_on or "ratio"
    for name, by_decoder in ratios.items():
        for decoder, ratio in by_decoder.items():
            low, high = ratio.interval()
            value = {"ratio": ratio.value, "lower": low, "upper": high}[key]
            if value > limit:
                yield f"{name}, {decoder}: {FAIL_ON[key]} is {value:.4g}, above {limit:g} by {value - limit:.2g}"


def exit_on_failures(failures: Sequence[str]) -> None:
    sys.stderr.write("".join(f"eosin audit: {failure}\n" for failure in failures))
    if failures:
        sys.exit(1)
