#include "cortado/data/instructions.h"

#include <sstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/json.h"

namespace cortado {
namespace {

// Parses JSON Lines as a list.
Json read_lines(const std::string& text, const std::string& path) {
  Json list = Json::array();
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      list.push_back(parse_json(line, concat(path, ":", number)));
    }
  }
  return list;
}

Instruction instruction_of(const Json& json, const std::string& place) {
  fail_input_if(!json.is_object(), "[", place, "] is not an object with \"instruction\" and \"output\"");
  const auto text = [&](const char* name) -> std::string {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null()) return "";
    fail_input_if(!found->is_string(), "[", place, "] \"", name, "\" is not a text");
    return found->get<std::string>();
  };
  Instruction example{text("instruction"), text("input"), text("output")};
  fail_input_if(example.instruction.empty(), "[", place, "] has no \"instruction\"");
  fail_input_if(example.output.empty(), "[", place, "] has no \"output\"");
  return example;
}

}  // namespace

std::string Instruction::prompt() const {
  const bool more = !input.empty();
  return concat("Below is an instruction that describes a task",
                more ? ", paired with an input that provides further context" : "",
                ". Write a response that appropriately completes the request.\n\n### Instruction:\n", instruction,
                more ? "\n\n### Input:\n" + input : "", "\n\n### Response:\n");
}

std::vector<Instruction> read_instructions(const std::string& path) {
  const std::string text = read_file(path);
  const size_t begin = text.find_first_not_of(" \t\r\n");
  const bool list = begin != std::string::npos && text[begin] == '[';
  const Json json = list ? parse_json(text, path) : read_lines(text, path);
  std::vector<Instruction> examples;
  for (const Json& entry : json) {
    examples.push_back(instruction_of(entry, concat(path, ": example ", examples.size() + 1)));
  }
  fail_input_if(examples.empty(), "[", path, "] has no examples");
  return examples;
}

InstructionTokens encode_instruction(const Tokenizer& tokenizer, const Instruction& example) {
  InstructionTokens result{encode_prompt(tokenizer, example.prompt())};
  result.answer = result.tokens.size();
  const auto answer = tokenizer.encode(example.output);
  result.tokens.insert(result.tokens.end(), answer.begin(), answer.end());
  if (tokenizer.special().end >= 0) result.tokens.push_back(tokenizer.special().end);
  return result;
}

}  // namespace cortado
