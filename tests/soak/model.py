"""The model that soaks: small and random, with window and full layers, a byte-level tokenizer and a chat template."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tiny_models import save_tiny_model

END, TURN = "<end>", "<turn>"
CONTEXT = 512
TEMPLATE = (
    "{% for message in messages %}" + TURN + "{{ message.role }}\n{{ message.content }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + TURN + "assistant\n{% endif %}"
)


def write_model(folder: Path) -> Path:
    """A model directory that `tidegate serve` loads."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END), AddedToken(TURN)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, chat_template=TEMPLATE)
    save_tiny_model("gemma3", folder, vocab_size=len(alphabet) + 2, max_position_embeddings=CONTEXT, eos_token_id=256)
    wrapped.save_pretrained(folder)
    return folder
