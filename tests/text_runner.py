"""A runner whose every answer is a given text, and the codec in which that text has one token a byte."""

import codecs
import math
from collections.abc import Sequence

from tidegate_engine.grammar.base import TokenConstraint
from tidegate_engine.request import TokenLogprobs
from tidegate_engine.runner import RowOutput, ScheduledRow, StepBatch
from tidegate_engine.text.byte_codec import ByteCodec
from tidegate_engine.text.chat_template import DEFAULT_OPTIONS, ChatOptions

EOS = 0
VOCAB_SIZE = 256


class TextRunner:
    """Answers with the text's bytes, then ends. The best tokens are the byte itself and those after it.

    A byte that is no character on its own stands in the text as a surrogate, as Python writes file names.
    """

    kv_windows: tuple[int | None, ...] = (None,)
    eos_token_ids = frozenset({EOS})
    vocab_size = VOCAB_SIZE

    def __init__(self, answer: str, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._tokens = [*answer.encode(errors="surrogateescape"), EOS]

    def run(self, batch: StepBatch) -> tuple[RowOutput | None, ...]:
        return tuple(self._output(row) for row in batch.rows)

    def _output(self, row: ScheduledRow) -> RowOutput | None:
        extras = row.extras
        targets = extras.prompt_targets if extras else ()
        of_prompt = tuple(logprobs_of(token_id, extras.num_prompt_logprobs) for token_id in targets)
        if row.sampling is None:
            return RowOutput(None, None, of_prompt) if of_prompt else None
        token_id = self._token(row, extras.constraint if extras else None)
        num_top = row.sampling.num_logprobs
        return RowOutput(token_id, None if num_top is None else logprobs_of(token_id, num_top), of_prompt)

    def _token(self, row: ScheduledRow, constraint: TokenConstraint | None) -> int:
        """The text's, as far as a grammar allows; else the end, or the last token in the vocabulary but white space."""
        token_id = self._tokens[min(row.num_outputs, len(self._tokens) - 1)]
        if constraint is None:
            return token_id
        mask = constraint.mask()
        allowed = [each for each in range(VOCAB_SIZE) if mask[each // 8] >> (each % 8) & 1 and each not in b" \n\t\r"]
        return next((each for each in (token_id, EOS) if each in allowed), max(allowed))


def logprobs_of(token_id: int, num_top: int) -> TokenLogprobs:
    top = tuple(((token_id + rank) % VOCAB_SIZE, -(rank + 1) * math.log(2)) for rank in range(num_top))
    return TokenLogprobs(token_id, -math.log(2), top)


class BytesDecoder:
    def __init__(self, prompt_token_ids: Sequence[int] = ()) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._utf8.decode(bytes(prompt_token_ids))

    def feed(self, token_ids: Sequence[int]) -> str:
        return self._utf8.decode(bytes(token_ids))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class TextCodecOfBytes(ByteCodec):
    """Like ByteCodec, but every token is its byte. Renders what templates see of tools, one word each."""

    def __init__(self) -> None:
        super().__init__()
        self.eos_token_ids = frozenset({EOS})
        self.rendered: list[tuple[list, ChatOptions]] = []
        self.shown: list[frozenset[str] | None] = []  # what each decoder was told to show

    def apply_chat_template(self, messages, options: ChatOptions = DEFAULT_OPTIONS) -> str:
        self.rendered.append((list(messages), options))
        return f"{len(messages)} messages{options.variables.get('ending', '')}"

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def decoder(self, prompt_token_ids=(), shown=frozenset()) -> BytesDecoder:
        self.shown.append(shown)
        return BytesDecoder(prompt_token_ids)
