// Instructions with their answers, in Alpaca's form.
#pragma once

#include <string>
#include <vector>

#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

struct Instruction {
  std::string instruction;
  std::string input;  // may be empty
  std::string output;

  // Alpaca's prompt: all that stands before the output.
  std::string prompt() const;
};

// A JSON list, or JSON Lines, of objects with "instruction", "output" and perhaps "input"; other fields are passed
// over. InputError names the file and the example: broken, empty, without an instruction or an answer.
std::vector<Instruction> read_instructions(const std::string& path);

// One example as a model reads it: the mark of a text's beginning, the prompt, the answer, the mark of its end.
struct InstructionTokens {
  std::vector<int32_t> tokens;
  size_t answer = 0;  // where the answer begins
};
InstructionTokens encode_instruction(const Tokenizer& tokenizer, const Instruction& example);

}  // namespace cortado
