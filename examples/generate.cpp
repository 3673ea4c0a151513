// Continues a text, saves the state, and tries two endings from it:  example_generate RUN PROMPT [TOKENS]
#include "cortado/generate/generate.h"

#include <iostream>

#include "cortado/base/error.h"
#include "cortado/models/checkpoint.h"

int main(int argc, char** argv) try {
  using namespace cortado;
  if (argc < 3) throw InputError("usage: example_generate RUN PROMPT [TOKENS]");
  const std::string run = argv[1];
  GenerateOptions options;
  options.tokens = argc > 3 ? std::stoll(argv[3]) : 200;
  options.sampling.temperature = 0.8;

  Session session(open_model(run), load_tokenizer(run + "/tokenizer"));
  session.prefill_text(argv[2]);
  for (const int64_t seed : {1, 2}) {
    Session fork = session.fork();  // the prompt is read once; its state is a few kilobytes, however long it was
    options.sampling.seed = seed;
    std::cout << "--- seed " << seed << "\n" << argv[2];
    generate(fork, options, [](std::string_view text) { std::cout << text << std::flush; });
    std::cout << "\n--- state: " << fork.state_bytes() << " bytes after " << fork.depth() << " tokens\n";
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
