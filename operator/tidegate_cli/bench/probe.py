"""Before the load: is the server there, does it know the model, and how does it count tokens? Two short requests."""

from tidegate_cli.bench.errors import NoServer
from tidegate_cli.bench.exchange import Exchange
from tidegate_cli.bench.outcome import Ending
from tidegate_cli.bench.prompts import Lengths, words

SHORT_WORDS, LONG_WORDS = 8, 72


async def measure_lengths(exchange: Exchange) -> Lengths:
    """Raises NoServer with what the server said."""
    short = await _num_tokens(exchange, SHORT_WORDS)
    long = await _num_tokens(exchange, LONG_WORDS)
    return Lengths.measured((SHORT_WORDS, short), (LONG_WORDS, long))


async def _num_tokens(exchange: Exchange, num_words: int) -> int:
    outcome = await exchange.ask(" ".join(words(f"probe/{num_words}", num_words)), 1)
    if outcome.ending is not Ending.COMPLETED:
        raise NoServer(f"the server does not answer a short request: {outcome.fault}")
    return outcome.num_prompt_tokens
