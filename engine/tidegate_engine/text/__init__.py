"""Between text and token ids: tokenizers of both file formats, chat templates, streaming decode. No torch."""
