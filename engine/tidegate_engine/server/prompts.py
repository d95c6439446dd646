"""From what a client sent to prompt token ids, without ever blocking the event loop.

Rendering and tokenizing run in the front's executor (a tokenizer needs about a second for a megabyte). A text that
cannot fit, whatever its tokens, is refused by its length before that work is done.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tidegate_engine.errors import BadRequest
from tidegate_engine.server.errors import bad_request
from tidegate_engine.server.front import Front, prompt_too_long
from tidegate_engine.server.schemas.completion import Prompt
from tidegate_engine.server.schemas.messages import ChatMessage

T = TypeVar("T")


async def encode_prompt(front: Front, prompt: Prompt, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a completion prompt. Raises ApiError (400) if it cannot fit or has ids outside the vocabulary."""
    if isinstance(prompt, str):
        _check_size(front, prompt)
        encode = partial(front.codec.encode, prompt, add_special_tokens=add_special_tokens)
        return _known_ids(front, await _off_loop(front, encode))
    front.model.check_length(len(prompt))  # first: looking through millions of ids takes a second
    return _known_ids(front, prompt)


async def encode_chat(front: Front, messages: Sequence[ChatMessage]) -> list[int]:
    """Token ids of a conversation through the chat template. Raises ApiError (400)."""
    turns = [{"role": _template_role(message.role), "content": message.text} for message in messages]
    _check_size(front, *(turn["content"] for turn in turns))
    try:
        token_ids = await _off_loop(front, partial(front.codec.encode_chat, turns))
    except BadRequest as error:
        raise bad_request(str(error), param="messages") from error
    return _known_ids(front, token_ids)


async def decode_tokens(front: Front, token_ids: list[int]) -> str:
    check_token_ids(front, token_ids, param="tokens")
    return await _off_loop(front, partial(front.codec.decode, token_ids))


def _known_ids(front: Front, token_ids: list[int]) -> list[int]:
    """Also a tokenizer may know tokens, of images for one, that the text model has no embedding for."""
    check_token_ids(front, token_ids, param="prompt")
    return token_ids


def check_token_ids(front: Front, token_ids: Sequence[int], *, param: str) -> None:
    vocab_size = front.model.vocab_size
    wrong = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    if wrong:
        raise bad_request(f"token id {wrong[0]} is outside the vocabulary of {vocab_size} tokens", param=param)


def _check_size(front: Front, *texts: str) -> None:
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > front.max_prompt_bytes:
        raise prompt_too_long(
            f"the prompt has {num_bytes} bytes, more than any text of that many tokens", front.model.context
        )


def _template_role(role: str) -> str:
    """`developer` is OpenAI's newer name of `system`; templates know only the latter."""
    return "system" if role == "developer" else role


async def _off_loop(front: Front, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(front.executor, work)
