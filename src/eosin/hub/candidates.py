"""A model as `generate` runs it, and the endings that it lacks: what `eosin fix` begins with."""

from __future__ import annotations

from eosin.contracts import Decoder
from eosin.decoding.stopping import StopStrings
from eosin.errors import BadInput
from eosin.hub.causal_lm import CausalLM
from eosin.hub.doctor import ModelFiles
from eosin.hub.endings import find_turn_text
from eosin.hub.loading import HubTokenizer
from eosin.hub.sampling import choose_decoder
from eosin.remedies.candidates import AS_IT_IS, Candidate, NeverEnding, list_unfloored
from eosin.report.verdict import write_generate_arguments


def list_hub_candidates(
    lm: CausalLM, tokenizer: HubTokenizer, decoder: Decoder | None, stop: StopStrings | None
) -> list[Candidate]:
    """The model as it is with `generate`, and all remedies but the floor; `lm` ends by every eos id that is known."""
    files = open_model_files(lm, tokenizer)
    known = CausalLM(lm.model, tuple(files.keep_valid(lm.eos_ids)))
    chosen = decoder or choose_decoder(lm.model.generation_config, lm.vocab_size)
    if write_generate_arguments(str(chosen)) is None:
        raise BadInput(f"--decoder {chosen}: `generate` has no such decoder; take greedy or a sampler that it has")
    stops_at = tuple(files.keep_valid(files.stops_at))
    baseline = Candidate(AS_IT_IS, CausalLM(lm.model, stops_at) if stops_at else NeverEnding(known), chosen, stop)
    text = find_turn_text(tokenizer.inner)
    strings = tuple(dict.fromkeys([*baseline.stop_strings, *([text] if text else [])]))
    return [baseline, *list_unfloored(baseline, known, StopStrings(strings, tokenizer.decode) if strings else None)]


def open_model_files(lm: CausalLM, tokenizer: HubTokenizer) -> ModelFiles:
    """What the checks of `eosin doctor` read, of a model that is open."""
    return ModelFiles(tokenizer.inner, lm.model.config, lm.model.generation_config)
