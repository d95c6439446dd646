"""Requests as OpenAI's clients send them, with the extensions of vLLM that benchmarks and gateways use.

Nothing that would change an answer is silently ignored: a field that is not served is accepted only with the value that
means "off", an unknown one is refused as OpenAI refuses it. Fields without influence on the text are accepted.
"""
