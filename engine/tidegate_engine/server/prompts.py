"""From what a client sent to prompt token ids, without ever blocking the event loop.

Rendering and tokenizing run in the front's executor (a tokenizer needs about a second for a megabyte). A text that
cannot fit, whatever its tokens, is refused by its length before that work is done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic_core import from_json

from tidegate_engine.errors import BadRequest
from tidegate_engine.server.errors import bad_request
from tidegate_engine.server.front import Front, prompt_too_long
from tidegate_engine.server.offload import off_loop
from tidegate_engine.server.schemas.completion import Prompt
from tidegate_engine.server.schemas.messages import ChatMessage
from tidegate_engine.server.schemas.tools import Tool, ToolCall
from tidegate_engine.text.chat_template import RESERVED_VARIABLES, ChatOptions


@dataclass(frozen=True)
class EncodedPrompt:
    """`text` as far as it is known: a prompt may come as token ids. `is_cut`: they are only its end."""

    token_ids: list[int]
    text: str | None
    is_cut: bool = False


async def encode_prompt(front: Front, prompt: Prompt, *, add_special_tokens: bool) -> EncodedPrompt:
    """Token ids of a completion prompt. Raises ApiError (400) if it cannot fit or has ids outside the vocabulary."""
    if isinstance(prompt, str):
        _check_size(front, prompt)
        encode = partial(front.codec.encode, prompt, add_special_tokens=add_special_tokens)
        return EncodedPrompt(_known_ids(front, await off_loop(front, encode)), prompt)
    front.model.check_length(len(prompt))  # first: looking through millions of ids takes a second
    return EncodedPrompt(_known_ids(front, prompt), None)


async def encode_chat(front: Front, messages: Sequence[ChatMessage], options: ChatOptions) -> EncodedPrompt:
    """A conversation through the chat template, special tokens once. Raises ApiError (400)."""
    if reserved := RESERVED_VARIABLES & options.variables.keys():
        name = min(reserved)
        raise bad_request(f"'{name}' is a field of its own, not one of the template's", param="chat_template_kwargs")
    turns = [_turn(message, f"messages[{number}]") for number, message in enumerate(messages)]
    _check_size(front, *(message.text for message in messages))
    try:
        text, token_ids = await off_loop(front, partial(_render, front, turns, options))
    except BadRequest as error:
        raise bad_request(str(error), param="messages") from error
    return EncodedPrompt(_known_ids(front, token_ids), text)


def tool_definitions(tools: Sequence[Tool]) -> tuple[Mapping[str, object], ...]:
    """As templates write them: only what the client gave."""
    return tuple(tool.model_dump(exclude_unset=True) for tool in tools)


async def decode_tokens(front: Front, token_ids: list[int]) -> str:
    check_token_ids(front, token_ids, param="tokens")
    return await off_loop(front, partial(front.codec.decode, token_ids))


def check_token_ids(front: Front, token_ids: Sequence[int], *, param: str) -> None:
    vocab_size = front.model.vocab_size
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:  # a million in a few milliseconds
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise bad_request(f"token id {wrong} is outside the vocabulary of {vocab_size} tokens", param=param)


def _render(front: Front, turns: Sequence[Mapping[str, object]], options: ChatOptions) -> tuple[str, list[int]]:
    text = front.codec.apply_chat_template(turns, options)
    _check_size(front, text)  # with what the template made of tools
    return text, front.codec.encode(text, add_special_tokens=False)


def _turn(message: ChatMessage, path: str) -> dict[str, object]:
    """A message as templates know it: `developer` is OpenAI's newer name of `system`, which they all know."""
    role = "system" if message.role == "developer" else message.role
    turn: dict[str, object] = {"role": role, "content": message.text}
    if message.tool_calls:
        turn["tool_calls"] = [_called(call, path) for call in message.tool_calls]
    if reasoning := message.reasoning_content or message.reasoning:
        turn["reasoning_content"] = reasoning
    if message.role == "tool":
        turn |= {name: value for name in ("tool_call_id", "name") if (value := getattr(message, name)) is not None}
    return turn


def _called(call: ToolCall, path: str) -> dict[str, object]:
    """Clients send arguments as JSON text, templates want the object."""
    try:
        arguments = from_json(call.function.arguments or "{}")
    except ValueError as error:
        raise bad_request(
            f"the arguments of the call of '{call.function.name}' are not JSON: {error}", param=f"{path}.tool_calls"
        ) from error
    known_id = {} if call.id is None else {"id": call.id}
    return {**known_id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def _known_ids(front: Front, token_ids: list[int]) -> list[int]:
    """Also a tokenizer may know tokens, of images for one, that the text model has no embedding for."""
    check_token_ids(front, token_ids, param="prompt")
    return token_ids


def _check_size(front: Front, *texts: str) -> None:
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > front.max_prompt_bytes:
        raise prompt_too_long(
            f"the prompt has {num_bytes} bytes, more than any text of that many tokens", front.model.context
        )
