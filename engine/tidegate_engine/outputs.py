"""What becomes of a row's output: logprobs of the prompt as they come, whether the token ends its request, the chunk.

Pure but for the request it is about; the engine calls it after each step.
"""

from typing import NamedTuple

from tidegate_engine.request import FinishReason, Request, TokenChunk, TokenLogprobs
from tidegate_engine.runner import RowOutput, RowResult, ScheduledRow


class Ending(NamedTuple):
    """Whether and how a token ends its request; `is_all_text`: a grammar is complete with it, it is no stop token."""

    reason: FinishReason | None
    is_all_text: bool = False


GOES_ON = Ending(None)
STOPPED = Ending(FinishReason.STOP)
CUT_OFF = Ending(FinishReason.LENGTH)
COMPLETE = Ending(FinishReason.STOP, is_all_text=True)


def take_prompt_logprobs(request: Request, row: ScheduledRow, output: RowOutput) -> None:
    """Keeps those of positions that are new: a prompt may be computed again after a preemption."""
    if not output.prompt_logprobs:
        return
    if not request.prompt_logprobs:
        request.prompt_logprobs.append(None)  # nothing predicts the first token
    num_known = len(request.prompt_logprobs) - (row.start + 1)
    assert num_known >= 0, "a part of the prompt was skipped although its logprobs are wanted"
    request.prompt_logprobs.extend(output.prompt_logprobs[num_known:])


def ending_of(request: Request, token_id: int) -> Ending:
    """For the token just sampled, which the request's constraint takes. A stop token at the last place is a stop.

    Raises GrammarFailed.
    """
    sampling = request.sampling
    if token_id in sampling.stop_token_ids:
        return STOPPED
    if request.constraint is not None:
        request.constraint.advance(token_id)
        if request.constraint.is_finished:
            return COMPLETE
    return CUT_OFF if len(request.token_ids) > request.num_kv_tokens_at_end else GOES_ON


def plain_token(request: Request, row: ScheduledRow, result: RowResult) -> int | None:
    """Of a decoding request, where it does not end it and nothing else comes with it: nearly always."""
    if type(result) is not RowOutput or result.logprobs is not None or row.extras is not None:
        return None
    token_id = result.token_id
    if token_id in request.sampling.stop_token_ids or len(request.token_ids) >= request.num_kv_tokens_at_end:
        return None
    return token_id


def token_chunk(request: Request, token_id: int, logprobs: TokenLogprobs | None, ending: Ending) -> TokenChunk:
    """Of the token just sampled; what concerns the prompt goes with the first. Hundreds are made a step."""
    is_first = len(request.token_ids) == request.num_prompt_tokens + 1
    if ending is GOES_ON and logprobs is None and not is_first:
        return TokenChunk((token_id,), None)
    return TokenChunk(
        (token_id,),
        ending.reason,
        () if logprobs is None else (logprobs,),
        _whole_prompt(request) if is_first else (),
        request.num_cached_tokens if is_first else 0,
        ending.is_all_text,
    )


def _whole_prompt(request: Request) -> tuple[TokenLogprobs | None, ...]:
    if request.sampling.num_prompt_logprobs is None:
        return ()
    return tuple(request.prompt_logprobs) or (None,)
