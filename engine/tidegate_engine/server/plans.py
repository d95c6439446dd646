"""From a checked body and its encoded prompts to choices ready to run: sampling, stops, seeds, readers, constraints."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from tidegate_core.launch import ToolParser
from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.request import SamplingParams, Terms
from tidegate_engine.server.choices import ChoicePlan
from tidegate_engine.server.constraints import constraint_of, forced_call
from tidegate_engine.server.errors import bad_request
from tidegate_engine.server.front import Front
from tidegate_engine.server.prompts import EncodedPrompt, check_token_ids, decode_tokens
from tidegate_engine.server.schemas.chat import ChatRequest
from tidegate_engine.server.schemas.completion import CompletionRequest
from tidegate_engine.server.schemas.generation import GenerationRequest
from tidegate_engine.server.stream import Stopping

MAX_PROMPT_ENTRIES = 2**17  # log probabilities of one prompt: some tens of megabytes in memory and in the answer


async def chat_plans(front: Front, body: ChatRequest, prompt: EncodedPrompt, terms: Terms) -> list[ChoicePlan]:
    """One a choice. Raises ApiError (400)."""
    names = frozenset(tool.function.name for tool in body.tools or ()) if body.offers_tools else frozenset()
    is_open = front.answers.is_open(prompt.text or "")
    forced = forced_call(body)
    if is_open and (body.structure or forced):
        raise bad_request(
            "this prompt opens with reasoning, which no form of the answer holds in; switch it off "
            "(chat_template_kwargs, often {'enable_thinking': false}) or leave the form and a forced tool_choice out",
            param="response_format" if body.structure else "tool_choice",
        )
    plan = replace(
        _plan(front, body, prompt.token_ids, terms),
        shown=_shown(body, front.answers.shown_tokens(offers_tools=bool(names))),
        allows_several_calls=body.parallel_tool_calls is not False,
        make_reader=lambda: front.answers.reader(names, forced, is_open=is_open),
    )
    return _choices(plan, body, await constraint_of(front, body))


async def completion_plans(
    front: Front, body: CompletionRequest, prompts: Sequence[EncodedPrompt], terms: Terms
) -> list[ChoicePlan]:
    """As many for each prompt as choices are wanted. Raises ApiError (400)."""
    constraint = await constraint_of(front, body)
    plans: list[ChoicePlan] = []
    for prompt in prompts:
        plan = replace(
            _plan(front, body, prompt.token_ids, terms),
            shown=_shown(body, frozenset()),
            echo=await _echoed(front, prompt) if body.echo else None,
        )
        plans += _choices(plan, body, constraint if constraint is None or not plans else constraint.copy())
    return plans


def check_tools(front: Front, body: ChatRequest) -> None:
    """Raises ApiError (400)."""
    if body.offers_tools and front.answers.tools is ToolParser.NONE and forced_call(body) is None:
        raise bad_request("this server reads no tool calls (--tool-parser none); leave it out", param="tools")


def truncated(front: Front, body: GenerationRequest, prompt: EncodedPrompt) -> EncodedPrompt:
    """As truncate_prompt_tokens in vLLM: the last so many; -1 leaves just the room the answer needs."""
    most = body.truncate_prompt_tokens or len(prompt.token_ids)
    if most < 0:
        most = max(1, front.model.context - (body.wanted_tokens or 1))
    if most >= len(prompt.token_ids):
        return prompt
    return replace(prompt, token_ids=prompt.token_ids[-most:], is_cut=True)


def _plan(front: Front, body: GenerationRequest, prompt: list[int], terms: Terms) -> ChoicePlan:
    sampling = sampling_of(front, body, len(prompt))
    if (num_wanted := sampling.num_prompt_logprobs) is not None and len(prompt) * (1 + num_wanted) > MAX_PROMPT_ENTRIES:
        raise bad_request(
            f"{len(prompt)} prompt tokens with {num_wanted} others each are more log probabilities than the "
            f"{MAX_PROMPT_ENTRIES} of one prompt; ask for fewer",
            param="logprobs" if body.prompt_logprobs is None else "prompt_logprobs",
        )
    stopping = Stopping(body.stop_strings, bool(body.include_stop_str_in_output), sampling.min_tokens)
    return ChoicePlan(prompt, sampling, terms, stopping)


def _choices(plan: ChoicePlan, body: GenerationRequest, constraint: TokenConstraint | None) -> list[ChoicePlan]:
    """Each with a seed and a constraint of its own."""
    plans = []
    for number in range(body.num_choices):
        sampling = replace(plan.sampling, seed=seed_of(body.seed, number))
        if number > 0:  # choices of one prompt share what is said about it
            sampling = replace(sampling, num_prompt_logprobs=None)
        own = constraint if constraint is None or number == 0 else constraint.copy()
        plans.append(replace(plan, sampling=sampling, constraint=own))
    return plans


def seed_of(seed: int | None, number: int) -> int | None:
    """The first choice has the client's seed, the others seeds made of it: all are the same again next time."""
    if seed is None or number == 0:
        return seed
    digest = hashlib.sha256(f"{seed}-{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _shown(body: GenerationRequest, markers: frozenset[str]) -> frozenset[str] | None:
    return None if body.skip_special_tokens is False else markers


async def _echoed(front: Front, prompt: EncodedPrompt) -> str:
    return await decode_tokens(front, prompt.token_ids) if prompt.text is None or prompt.is_cut else prompt.text


def sampling_of(front: Front, body: GenerationRequest, num_prompt_tokens: int) -> SamplingParams:
    stop_token_ids = frozenset(body.stop_token_ids or ())
    check_token_ids(front, sorted(stop_token_ids), param="stop_token_ids")
    if not body.ignore_eos:
        stop_token_ids |= front.codec.eos_token_ids
    logit_bias = tuple(sorted((int(token_id), bias) for token_id, bias in (body.logit_bias or {}).items()))
    check_token_ids(front, [token_id for token_id, _ in logit_bias], param="logit_bias")
    max_tokens = front.model.new_tokens(num_prompt_tokens, body.wanted_tokens)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=min(max(0, body.top_k or 0), front.model.vocab_size),
        seed=body.seed,
        stop_token_ids=stop_token_ids,
        min_p=_or(body.min_p, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        logit_bias=logit_bias,
        min_tokens=min(body.min_tokens or 0, max_tokens),
        num_logprobs=body.num_logprobs,
        num_prompt_logprobs=_num_prompt_logprobs(body),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _num_prompt_logprobs(body: GenerationRequest) -> int | None:
    is_echo = isinstance(body, CompletionRequest) and body.echo
    wanted = [number for number in (body.prompt_logprobs, body.num_logprobs if is_echo else None) if number is not None]
    return max(wanted, default=None)
