"""Times a prompt and decoding with ik_llama.cpp, by its packaged Python bindings.

Run by benches/runner.py with the package on PYTHONPATH: ik.py MODEL THREADS PROMPT DECODE REPEAT. Its best flags for a
processor: weights repacked when they are loaded, flash attention, fused up and gate. Prints a list of [prefill, decode]
tokens/s as JSON, one for each repetition after a first that warms up.
"""

import ctypes
import json
import sys
import time

import ik_llama_cpp._ctypes_api as api


def call(context, batch, tokens, position):
    """Computes the tokens from this position on; the logits of the last are wanted."""
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position + i, 1, 0
        batch.logits[i] = i == len(tokens) - 1
    if api.llama_decode(context, batch):
        sys.exit("ik_llama.cpp: llama_decode failed")
    return api.llama_get_logits_ith(context, len(tokens) - 1)


def main():
    path, (threads, prompt, count, repeat) = sys.argv[1], map(int, sys.argv[2:])
    api.llama_backend_init()
    of_model = api.llama_model_default_params()
    of_model.repack_tensors, of_model.use_mmap = True, False
    model = api.llama_model_load_from_file(path.encode(), of_model)
    if not model:
        sys.exit(f"ik_llama.cpp: cannot load {path}")
    of_context = api.llama_context_default_params()
    of_context.n_ctx, of_context.n_threads, of_context.n_threads_batch = prompt + count + 64, threads, threads
    of_context.n_batch, of_context.flash_attn, of_context.fused_up_gate = 2048, True, True
    context = api.llama_init_from_model(model, of_context)
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    batch = api.llama_batch_init(prompt, 0, 1)
    rates = []
    for _ in range(repeat + 1):
        api.llama_kv_cache_clear(context)
        start = time.perf_counter()
        call(context, batch, [3 + i * 37 % 250 for i in range(prompt)], 0)
        middle = time.perf_counter()
        for i in range(count):
            call(context, batch, [(i * 7919 + 11) % vocabulary], prompt + i)
        rates.append([prompt / (middle - start), count / (time.perf_counter() - middle)])
    print(json.dumps(rates[1:]))


if __name__ == "__main__":
    main()
