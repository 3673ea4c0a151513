// Variable tracking: a chain of assignments in noise. The question asks which variables have its value.
#include <algorithm>
#include <set>

#include "cortado/base/error.h"
#include "cortado/tasks/ruler/ruler.h"

namespace cortado {

namespace {

constexpr int64_t kHops = 4, kVariables = kHops + 1;
constexpr int64_t kVariableAnswerTokens = 30;
constexpr int64_t kExampleTokens = 500, kExampleStep = 5;  // size of the example before the question

struct Chain {
  std::string value;
  std::vector<std::string> variables, lines;
};

Chain draw_chain(Draws& draws, int64_t letters) {
  Chain chain;
  std::set<std::string> known;
  while (int64_t(chain.variables.size()) < kVariables) {
    std::string name;
    for (int64_t i = 0; i < letters; ++i) name += char('A' + draws.below(26));
    if (known.insert(name).second) chain.variables.push_back(name);
  }
  chain.value = std::to_string(draws.between(10000, 99998));
  chain.lines.push_back(concat("VAR ", chain.variables[0], " = ", chain.value));
  for (size_t i = 1; i < chain.variables.size(); ++i) {
    chain.lines.push_back(concat("VAR ", chain.variables[i], " = VAR ", chain.variables[i - 1], " "));
  }
  return chain;
}

// Puts the lines of the chain, in their order, into `size` lines of noise, each before the line in `places`.
RulerQuestion question_about(const Chain& chain, std::vector<int64_t> places, int64_t size) {
  std::sort(places.begin(), places.end());
  std::vector<std::string> lines;
  for (int64_t line = 0, next = 0; line < size; ++line) {
    if (next < kVariables && places[size_t(next)] == line) lines.push_back(chain.lines[size_t(next++)]);
    lines.push_back(kRulerNoise);
  }
  RulerQuestion question;
  question.size = size;
  question.references = chain.variables;
  for (const int64_t place : places) question.depths.push_back(double(place) / double(size));
  question.text = concat("Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
                         joined(lines, "\n"), "\nQuestion: Find all variables that are assigned the value ",
                         chain.value, " in the text above.");
  question.answer_prefix = concat(" Answer: According to the chain(s) of variable assignment in the text above, ",
                                  kVariables, " variables are assigned the value ", chain.value, ", they are: ");
  return question;
}

class VariableTask : public RulerTask {
 public:
  explicit VariableTask(const RulerOptions& options)
      : random_(static_cast<uint64_t>(options.seed), concat("ruler vt ", options.length)),
        examples_(static_cast<uint64_t>(options.seed), concat("ruler vt example ", options.length)) {
    while (tokens_of(options, example_size_ + kExampleStep) <= kExampleTokens) example_size_ += kExampleStep;
  }

  int64_t least(int64_t) const override { return kVariables; }

  RulerQuestion draw(int64_t index, int64_t size) const override {
    Draws draws(random_, index);
    const Chain chain = draw_chain(draws, 5);
    RulerQuestion question = question_about(chain, draws.distinct(kVariables, size), size);
    question.text = example(index, example_size_).text + "\n\n\n\n" + question.text;
    return question;
  }

 private:
  // An example with its answer. Each question has its own names and value; the places of the lines are always equal.
  RulerQuestion example(int64_t index, int64_t size) const {
    Draws draws(examples_, index + 1), places(examples_, 0);
    const Chain chain = draw_chain(draws, 3);
    RulerQuestion question = question_about(chain, places.distinct(kVariables, size), size);
    question.text += concat(question.answer_prefix, " ", joined(chain.variables, " "));
    question.answer_prefix.clear();
    return question;
  }

  int64_t tokens_of(const RulerOptions& options, int64_t size) const {
    return options.count(example(0, size)) + kVariableAnswerTokens;
  }

  RandomStream random_, examples_;
  int64_t example_size_ = kExampleStep;
};

}  // namespace

std::vector<RulerKind> variable_kinds() {
  return {{"vt", {}, kVariableAnswerTokens, false, [](const RulerOptions& options, const RulerMaterial&) {
             return std::make_unique<VariableTask>(options);
           }}};
}

}  // namespace cortado
