// Instructions with answers in Alpaca's format.
#pragma once

#include <string>
#include <vector>

#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

struct Instruction {
  std::string instruction;
  std::string input;  // may be empty
  std::string output;

  // Alpaca's prompt: the text before the output.
  std::string prompt() const;
};

// Reads a JSON list or JSON Lines of objects with "instruction", "output" and optionally "input"; other fields are
// ignored. InputError, with file and example, if an example is broken or has no instruction or answer, or if there is
// no example.
std::vector<Instruction> read_instructions(const std::string& path);

// One example as a model reads it: the begin tokens, the prompt, the answer, and the end token.
struct InstructionTokens {
  std::vector<int32_t> tokens;
  size_t answer = 0;  // index of the answer's first token
};
InstructionTokens encode_instruction(const Tokenizer& tokenizer, const Instruction& example);

}  // namespace cortado
