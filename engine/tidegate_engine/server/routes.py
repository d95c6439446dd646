"""The OpenAI routes and vLLM's tokenize pair: parse, encode off the loop, submit, answer whole or as a stream.

https://platform.openai.com/docs/api-reference/chat and /completions. Each handler reads top to bottom; what can go
wrong raises ApiError or EngineError and becomes an answer in errors.py.
"""

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from tidegate_engine.request import ServiceClass, Terms
from tidegate_engine.server.answers import (
    DetokenizeAnswer,
    ModelCard,
    ModelExtra,
    ModelList,
    ServiceTier,
    TokenizeAnswer,
)
from tidegate_engine.server.bodies import read_body
from tidegate_engine.server.callers import caller_of
from tidegate_engine.server.choices import ChoicePlan
from tidegate_engine.server.completion_rendering import CompletionRenderer
from tidegate_engine.server.errors import ApiError, unavailable, unknown_model
from tidegate_engine.server.front import Front
from tidegate_engine.server.generation import Generation
from tidegate_engine.server.logprobs import Spell
from tidegate_engine.server.offload import off_loop
from tidegate_engine.server.plans import chat_plans, check_tools, completion_plans, truncated
from tidegate_engine.server.prompts import decode_tokens, encode_chat, encode_prompt, tool_definitions
from tidegate_engine.server.rendering import AnswerHead, ChatRenderer, Renderer
from tidegate_engine.server.schemas.chat import ChatRequest
from tidegate_engine.server.schemas.completion import CompletionRequest
from tidegate_engine.server.schemas.generation import GenerationRequest, StreamOptions
from tidegate_engine.server.schemas.tokenize import DetokenizeRequest, TokenizeRequest
from tidegate_engine.server.schemas.tools import Tool
from tidegate_engine.server.sse import EventStream, wait_header
from tidegate_engine.text.chat_template import ChatOptions

T = TypeVar("T")
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left; nobody reads it

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    front = _front(request)
    body = await read_body(request, ChatRequest, front.body_limits)
    front.model.check_name(body.model)
    check_tools(front, body)
    prompt = await encode_chat(front, body.messages, _chat_options(body, body.tools if body.offers_tools else None))
    plans = await chat_plans(front, body, truncated(front, body, prompt), _terms(request, body))
    return await _answer(request, front, body, plans, ChatRenderer, id_prefix="chatcmpl")


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    front = _front(request)
    body = await read_body(request, CompletionRequest, front.body_limits)
    front.model.check_name(body.model)
    special = body.add_special_tokens is not False
    encoded = [await encode_prompt(front, prompt, add_special_tokens=special) for prompt in body.prompts]
    prompts = [truncated(front, body, prompt) for prompt in encoded]
    plans = await completion_plans(front, body, prompts, _terms(request, body))
    return await _answer(request, front, body, plans, CompletionRenderer, id_prefix="cmpl")


@router.api_route("/v1/models", methods=["GET", "HEAD"])
async def models(request: Request) -> Response:
    model_list = ModelList(
        object="list", data=tuple(_card(_front(request), name) for name in _front(request).model.names)
    )
    return _json(model_list.encode())


@router.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
async def model(request: Request, name: str) -> Response:
    front = _front(request)
    front.model.check_name(name)
    return _json(_card(front, name).encode())


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> Response:
    """What load generators and proxies made for vLLM ask first; the kubelet asks the admin port."""
    engine = _front(request).engine
    if engine.is_draining or engine.is_stuck:
        reason = "draining" if engine.is_draining else "stuck"
        raise unavailable(f"this engine is {reason}: use another replica", code=reason, retry_after_seconds=1)
    return PlainTextResponse("ok")


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    front = _front(request)
    body = await read_body(request, TokenizeRequest, front.body_limits)
    _check_optional_name(front, body.model)
    if body.messages is not None:
        prompt = await encode_chat(front, body.messages, _chat_options(body, body.tools))
    else:
        special = body.add_special_tokens is not False
        prompt = await encode_prompt(front, body.prompt or "", add_special_tokens=special)
    tokens = prompt.token_ids
    return _json(TokenizeAnswer(count=len(tokens), max_model_len=front.model.context, tokens=tokens).encode())


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    front = _front(request)
    body = await read_body(request, DetokenizeRequest, front.body_limits)
    _check_optional_name(front, body.model)
    return _json(DetokenizeAnswer(prompt=await decode_tokens(front, body.tokens)).encode())


async def _answer(
    request: Request,
    front: Front,
    body: GenerationRequest,
    plans: Sequence[ChoicePlan],
    make_renderer: Callable[[AnswerHead, StreamOptions, Spell], Renderer],
    *,
    id_prefix: str,
) -> Response:
    head = AnswerHead(
        f"{id_prefix}-{uuid.uuid4().hex}",
        int(front.wall_clock()),
        body.model,
        _tier(body),
        has_logprobs=body.num_logprobs is not None,
        has_prompt_logprobs=body.prompt_logprobs is not None,
    )
    options = body.stream_options or StreamOptions()
    renderer = make_renderer(head, options, front.codec.token_bytes)
    generation = Generation(front, head.id, plans, num_each=body.num_choices)
    if body.stream:
        return EventStream(generation, renderer, options)
    try:
        choices = await _unless_client_leaves(request, generation.collect())
    finally:
        generation.cancel()
    write = partial(renderer.whole, choices, generation.usage())
    # Every token of a prompt may be in it: too much to write between two events of others.
    document = await off_loop(front, write) if any(choice.prompt_tokens for choice in choices) else write()
    return _json(document, wait_header(generation))


def _terms(request: Request, body: GenerationRequest) -> Terms:
    service_class = ServiceClass.SPOT if body.service_tier == "flex" else ServiceClass.GUARANTEED
    terms = caller_of(request).terms(service_class=service_class, priority=body.priority or 0)
    return terms if body.cache_salt is None else replace(terms, cache_salt=_salted(terms.cache_salt, body.cache_salt))


def _salted(key_salt: bytes, own_salt: str) -> bytes:
    """Of the caller's key and the client's own: no choice of the latter reaches another key's prefixes."""
    return hashlib.sha256(len(key_salt).to_bytes(8, "big") + key_salt + own_salt.encode()).digest()


def _tier(body: GenerationRequest) -> ServiceTier | None:
    if body.service_tier is None:
        return None
    return "flex" if body.service_tier == "flex" else "default"


def _chat_options(body: ChatRequest | TokenizeRequest, tools: Sequence[Tool] | None) -> ChatOptions:
    return ChatOptions(
        adds_generation_prompt=body.add_generation_prompt is not False,
        continues_final_message=bool(body.continue_final_message),
        tools=tool_definitions(tools or ()),
        variables=body.chat_template_kwargs or {},
    )


async def _unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:  # Any: coroutines' own parameters
    """The result of `work`, which is cancelled as soon as the client's connection closes."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_client_left(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(CLIENT_CLOSED_REQUEST, "the client left before its answer was complete")
    finally:
        working.cancel()
        watching.cancel()


async def _client_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _front(request: Request) -> Front:
    front = request.app.state.front
    assert isinstance(front, Front)
    return front


def _card(front: Front, name: str) -> ModelCard:
    served = front.model
    return ModelCard(
        id=name,
        object="model",
        created=served.created,
        owned_by="tidegate",
        root=served.names[0],
        parent=None,
        max_model_len=served.context,
        x_tidegate=ModelExtra(runner=served.runner, simulation=served.is_simulation),
    )


def _check_optional_name(front: Front, name: str | None) -> None:
    if name is not None and name not in front.model.names:
        raise unknown_model(name, front.model.names)


def _json(document: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(document, headers=headers, media_type="application/json")
