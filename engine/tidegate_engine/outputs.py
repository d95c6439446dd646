"""What becomes of a row's output: logprobs of the prompt as they come, whether the token ends its request, the chunk.

Pure but for the request it is about; the engine calls it after each step.
"""

from typing import NamedTuple

from tidegate_engine.request import FinishReason, Request, TokenChunk, TokenLogprobs
from tidegate_engine.runner import RowOutput, ScheduledRow


class Ending(NamedTuple):
    """Whether and how a token ends its request; `is_all_text`: a grammar is complete with it, it is no stop token."""

    reason: FinishReason | None
    is_all_text: bool = False


GOES_ON = Ending(None)
STOPPED = Ending(FinishReason.STOP)
CUT_OFF = Ending(FinishReason.LENGTH)


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
    if request.constraint:
        request.constraint.advance(token_id)
        if request.constraint.is_finished:
            return Ending(FinishReason.STOP, is_all_text=True)
    return CUT_OFF if len(request.token_ids) >= request.num_tokens_at_end else GOES_ON


def token_chunk(request: Request, output: RowOutput, ending: Ending) -> TokenChunk:
    """Of a row that sampled; what concerns the prompt goes with the first token."""
    assert output.token_id is not None
    is_first = len(request.token_ids) - request.num_prompt_tokens == 1
    if output.logprobs is None and not is_first:
        return TokenChunk((output.token_id,), ending.reason, (), (), 0, ending.is_all_text)
    return TokenChunk(
        (output.token_id,),
        ending.reason,
        () if output.logprobs is None else (output.logprobs,),
        _whole_prompt(request) if is_first else (),
        request.num_cached_tokens if is_first else 0,
        ending.is_all_text,
    )


def _whole_prompt(request: Request) -> tuple[TokenLogprobs | None, ...]:
    if request.sampling.num_prompt_logprobs is None:
        return ()
    return tuple(request.prompt_logprobs) or (None,)
