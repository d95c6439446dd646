"""The OpenAI routes and vLLM's tokenize pair: parse, encode off the loop, submit, answer whole or as a stream.

https://platform.openai.com/docs/api-reference/chat and /completions. Each handler reads top to bottom; what can go
wrong raises ApiError or EngineError and becomes an answer in errors.py.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from tidegate_engine.request import SamplingParams, ServiceClass
from tidegate_engine.server.answers import DetokenizeAnswer, ModelCard, ModelExtra, ModelList, TokenizeAnswer
from tidegate_engine.server.bodies import read_body
from tidegate_engine.server.callers import caller_of
from tidegate_engine.server.errors import ApiError, unknown_model
from tidegate_engine.server.front import Front
from tidegate_engine.server.generation import Generation, PromptPlan
from tidegate_engine.server.prompts import check_token_ids, decode_tokens, encode_chat, encode_prompt
from tidegate_engine.server.rendering import AnswerHead, ChatRenderer, CompletionRenderer, Renderer
from tidegate_engine.server.schemas.chat import ChatRequest
from tidegate_engine.server.schemas.completion import CompletionRequest
from tidegate_engine.server.schemas.generation import GenerationRequest, StreamOptions
from tidegate_engine.server.schemas.tokenize import DetokenizeRequest, TokenizeRequest
from tidegate_engine.server.sse import EventStream

T = TypeVar("T")
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left; nobody reads it

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    front = _front(request)
    body = await read_body(request, ChatRequest, front.body_limits)
    front.model.check_name(body.model)
    prompt = await encode_chat(front, body.messages)
    return await _answer(request, front, body, [prompt], ChatRenderer, id_prefix="chatcmpl")


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    front = _front(request)
    body = await read_body(request, CompletionRequest, front.body_limits)
    front.model.check_name(body.model)
    special = body.add_special_tokens is not False
    prompts = [await encode_prompt(front, prompt, add_special_tokens=special) for prompt in body.prompts]
    return await _answer(request, front, body, prompts, CompletionRenderer, id_prefix="cmpl")


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


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    front = _front(request)
    body = await read_body(request, TokenizeRequest, front.body_limits)
    _check_optional_name(front, body.model)
    if body.messages is not None:
        tokens = await encode_chat(front, body.messages)
    else:
        special = body.add_special_tokens is not False
        tokens = await encode_prompt(front, body.prompt or "", add_special_tokens=special)
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
    prompts: Sequence[Sequence[int]],
    make_renderer: Callable[[AnswerHead, StreamOptions], Renderer],
    *,
    id_prefix: str,
) -> Response:
    head = AnswerHead(f"{id_prefix}-{uuid.uuid4().hex}", int(front.wall_clock()), body.model)
    options = body.stream_options or StreamOptions()
    terms = caller_of(request).terms(service_class=_service_class(body), priority=body.priority or 0)
    plans = [PromptPlan(prompt, _sampling(front, body, len(prompt)), terms, body.stop_strings) for prompt in prompts]
    renderer = make_renderer(head, options)
    generation = Generation(front, head.id, plans)
    if body.stream:
        return EventStream(generation, renderer, options)
    try:
        choices = await _unless_client_leaves(request, generation.collect())
    finally:
        generation.cancel()
    return _json(renderer.whole(choices, generation.usage()))


def _service_class(body: GenerationRequest) -> ServiceClass:
    return ServiceClass.SPOT if body.service_tier == "flex" else ServiceClass.GUARANTEED


def _sampling(front: Front, body: GenerationRequest, num_prompt_tokens: int) -> SamplingParams:
    stop_token_ids = frozenset(body.stop_token_ids or ())
    check_token_ids(front, sorted(stop_token_ids), param="stop_token_ids")
    if not body.ignore_eos:
        stop_token_ids |= front.codec.eos_token_ids
    return SamplingParams(
        max_tokens=front.model.new_tokens(num_prompt_tokens, body.wanted_tokens),
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=min(max(0, body.top_k or 0), front.model.vocab_size),
        seed=body.seed,
        stop_token_ids=stop_token_ids,
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


def _json(document: bytes) -> Response:
    return Response(document, media_type="application/json")
