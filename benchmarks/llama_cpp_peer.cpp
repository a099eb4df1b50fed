// Tokens a second of llama.cpp for a GGUF file: greedy decoding after a prompt, and a prefill of 512 tokens.
//
//     llama_cpp_peer FILE THREADS TOKENS id id …     →  {"decode": 113.2, "prefill": 278.4, "tokens": [5, 17, …]}
//
// Built against llama.cpp's static libraries; benchmarks/llama_cpp.py says how.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int main(int argc, char** argv) {
    if (argc < 5) return 2;
    const int threads = std::atoi(argv[2]), count = std::atoi(argv[3]);
    std::vector<llama_token> prompt;
    for (int i = 4; i < argc; i++) prompt.push_back(std::atoi(argv[i]));
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 3;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 1024;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = threads;
    llama_context* context = llama_init_from_model(model, params);
    if (!context) return 4;
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    auto compute = [&](std::vector<llama_token>& ids) {
        if (llama_decode(context, llama_batch_get_one(ids.data(), (int)ids.size()))) std::exit(5);
        const float* logits = llama_get_logits_ith(context, -1);
        return (llama_token)(std::max_element(logits, logits + vocabulary) - logits);
    };
    std::vector<llama_token> tokens;
    double decode = 1e9, prefill = 1e9;
    for (int round = 0; round < 3; round++) {
        llama_memory_clear(llama_get_memory(context), true);
        tokens = {compute(prompt)};
        const double begin = now();
        for (int i = 0; i < count; i++) {
            std::vector<llama_token> one = {tokens.back()};
            tokens.push_back(compute(one));
        }
        decode = std::min(decode, now() - begin);
        llama_memory_clear(llama_get_memory(context), true);
        std::vector<llama_token> text(512, prompt[0]);
        const double start = now();
        compute(text);
        prefill = std::min(prefill, now() - start);
    }
    std::printf("{\"decode\": %.2f, \"prefill\": %.2f, \"tokens\": [", count / decode, 512 / prefill);
    for (size_t i = 0; i < tokens.size(); i++) std::printf("%s%d", i ? ", " : "", tokens[i]);
    std::printf("]}\n");
}
