"""From a chat model's text to what it means: content, reasoning and tool calls, the same however the text is cut."""
