// The only file that depends on XGrammar.
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <sstream>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/serve/grammar.h"
#include "cortado/serve/no_repeats.h"

namespace cortado {

namespace {

// Bytes of the grammar that a schema becomes.
constexpr size_t kLargestGrammar = 1 << 18;

// A schema of a hundred bytes can take minutes to compile, and compilation can't be interrupted. So the time for a
// vocabulary of a fraction of the tokens is measured first and extrapolated.
constexpr size_t kSampled = 64;
constexpr double kLongestCompilation = 20;  // seconds
constexpr double kLongestMask = 1;          // seconds per mask, in the engine's thread while all answers wait

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The library's warnings since the last reset: they name parts of a schema that it does not enforce.
thread_local std::string warning;

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

// Returns the tokens' texts; "" for tokens that must never come. Keeps only one of `each` tokens.
std::vector<std::string> texts_of(const Tokenizer& tokenizer, size_t each) {
  std::vector<std::string> texts;
  for (int32_t token = 0; token < tokenizer.vocabulary(); ++token) {
    const bool left_out = token % static_cast<int32_t>(each) != 0 || tokenizer.is_special(token);
    texts.push_back(left_out ? "" : tokenizer.piece(token));
  }
  return texts;
}

class XGrammarState : public GrammarState {
 public:
  // `schema`: null if nothing needs NoRepeats.
  XGrammarState(const xgrammar::CompiledGrammar& grammar, bool stops, const std::shared_ptr<const Json>& schema = {})
      : matcher_(grammar, std::nullopt, !stops),
        tokenizer_(grammar.GetTokenizerInfo()),
        vocabulary_(grammar.GetTokenizerInfo().GetVocabSize()),
        stops_(stops ? grammar.GetTokenizerInfo().GetStopTokenIds() : std::vector<int>{}),
        mask_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocabulary_))) {
    if (schema) repeats_.emplace(schema);
  }

  void restrict(std::span<float> logits) override {
    if (!possible()) throw Failure("[serve] the vocabulary has no token of what must come next in the answer's format");
    for (size_t token = 0; token < logits.size(); ++token) {
      if (!allowed(token)) logits[token] = -std::numeric_limits<float>::infinity();
    }
  }

  // Whether any token may come.
  bool possible() {
    find_allowed();
    return std::any_of(mask_.begin(), mask_.end(), [](int32_t bits) { return bits != 0; });
  }

  bool accept(int32_t token) override {
    if (!matcher_.AcceptToken(token)) throw Failure(concat("[serve] token ", token, " breaks the answer's format"));
    known_ = false;
    if (!repeats_ || is_stop(token)) return true;
    NoRepeats before = *repeats_;
    if (repeats_->push(tokenizer_.GetDecodedVocab()[static_cast<size_t>(token)]) &&
        (matcher_.IsTerminated() || possible()))
      return true;
    matcher_.Rollback(1);
    known_ = false;
    repeats_ = std::move(before);
    return false;
  }

  bool ended() override {
    if (matcher_.IsTerminated()) return true;
    if (!matcher_.IsCompleted()) return false;
    find_allowed();
    auto others = mask_;
    for (const int stop : stops_) others[static_cast<size_t>(stop) / 32] &= ~(1 << (stop % 32));
    return std::all_of(others.begin(), others.end(), [](int32_t bits) { return bits == 0; });
  }

 private:
  bool is_stop(int32_t token) const { return std::find(stops_.begin(), stops_.end(), token) != stops_.end(); }

  // Excludes tokens that would complete a repetition.
  void leave_out_repeats() {
    if (!repeats_ || !repeats_->matters()) return;
    const auto& texts = tokenizer_.GetDecodedVocab();
    for (size_t token = 0; token < texts.size(); ++token) {
      const bool completes = allowed(token) && texts[token].find_first_of("\",]}") != std::string::npos;
      if (completes && !NoRepeats(*repeats_).push(texts[token])) mask_[token / 32] &= ~(1 << (token % 32));
    }
  }

  bool allowed(size_t token) const { return (static_cast<uint32_t>(mask_[token / 32]) >> (token % 32) & 1) != 0; }

  void find_allowed() {
    if (known_) return;
    int64_t size = static_cast<int64_t>(mask_.size());
    DLTensor mask{};
    mask.data = mask_.data();
    mask.device = {kDLCPU, 0};
    mask.ndim = 1;
    mask.dtype = xgrammar::GetBitmaskDLType();
    mask.shape = &size;
    const double before = thread_seconds();
    matcher_.FillNextTokenBitmask(&mask);
    if (thread_seconds() - before > kLongestMask)
      throw Failure("[serve] the answer's format takes too long to hold to");
    leave_out_repeats();
    known_ = true;
  }

  xgrammar::GrammarMatcher matcher_;
  xgrammar::TokenizerInfo tokenizer_;
  int vocabulary_;
  std::vector<int> stops_;
  std::vector<int32_t> mask_;  // one bit per token
  bool known_ = false;         // whether mask_ is up to date for the next token
  std::optional<NoRepeats> repeats_;
};

class XGrammarGrammar : public Grammar {
 public:
  XGrammarGrammar(xgrammar::CompiledGrammar grammar, std::shared_ptr<const Json> distinct)
      : grammar_(std::move(grammar)), distinct_(std::move(distinct)) {}
  std::unique_ptr<GrammarState> begin(bool stops) const override {
    const bool some = stops && !grammar_.GetTokenizerInfo().GetStopTokenIds().empty();
    return std::make_unique<XGrammarState>(grammar_, some, distinct_);
  }
  int64_t bytes() const override { return static_cast<int64_t>(grammar_.MemorySizeBytes()); }

 private:
  xgrammar::CompiledGrammar grammar_;
  std::shared_ptr<const Json> distinct_;  // the schema, if it needs NoRepeats
};

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
}

// The library's grammar, changed where it allows too much: numbers of a readable length, strings of valid characters,
// no escaped spellings of property names, and our own rules.
std::string rules_of(const EnforcedSchema& schema, bool closed) {
  const auto grammar = xgrammar::Grammar::FromJSONSchema(schema.schema.dump(), /*any_whitespace=*/false, std::nullopt,
                                                         std::nullopt, closed);
  fail_input_if(!warning.empty(), warning);
  std::istringstream lines(grammar.ToString());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find(' '));
    replace_all(line, "[0-9]*", "[0-9]{0, 17}");
    replace_all(line, R"([^\"\\\r\n])", R"([^\0-\x1f\uD800-\uDFFF\"\\])");
    replace_all(line, R"([^\0-\x1f\"\\\r\n)", R"([^\0-\x1f\uD800-\uDFFF\"\\)");
    if (name == "basic_number_3") replace_all(line, "basic_number_digits{1, -1}", "basic_number_digits{1, 17}");
    if (name == "basic_number_5") replace_all(line, "basic_number_digits{1, -1}", "basic_number_digits{1, 2}");
    if (name.find("addl_key") != std::string::npos) {
      replace_all(line, R"( | ("\\" basic_escape basic_string_sub))", "");
    }
    for (const auto& rule : schema.rules) replace_all(line, R"("\")" + rule.place + R"(\"")", rule.name);
    text += line + "\n";
  }
  for (const auto& rule : schema.rules) text += rule.rules;
  return text;
}

class XGrammarCompiler : public GrammarCompiler {
 public:
  explicit XGrammarCompiler(const Tokenizer& tokenizer)
      : compiler_(compiler_of(tokenizer, 1)), sample_(compiler_of(tokenizer, kSampled)) {}

  std::shared_ptr<const Grammar> compile(const EnforcedSchema& schema, bool closed) override {
    warning.clear();
    try {
      const std::string rules = rules_of(schema, closed);
      const size_t size = rules.size();
      fail_input_if(size > kLargestGrammar, "it becomes a grammar of ", size, " bytes, and at most ", kLargestGrammar,
                    " are allowed");
      const auto grammar = xgrammar::Grammar::FromEBNF(rules);
      const double before = thread_seconds();
      sample_.CompileGrammar(grammar);
      const double seconds = kSampled * (thread_seconds() - before);
      fail_input_if(seconds > kLongestCompilation, "it would take about ", std::lround(seconds),
                    " s to compile, and at most ", kLongestCompilation, " s are allowed");
      auto compiled = compiler_.CompileGrammar(grammar);
      fail_input_if(!XGrammarState(compiled, true).possible(),
                    "the vocabulary has no token that an answer could begin with");
      return std::make_shared<XGrammarGrammar>(std::move(compiled),
                                               schema.distinct ? std::make_shared<const Json>(schema.schema) : nullptr);
    } catch (const std::exception& error) {
      throw InputError(one_line(error.what()));
    }
  }

 private:
  static xgrammar::GrammarCompiler compiler_of(const Tokenizer& tokenizer, size_t each) {
    const xgrammar::TokenizerInfo info(texts_of(tokenizer, each), xgrammar::VocabType::RAW, std::nullopt,
                                       tokenizer.special().stops);
    return {info, /*max_threads=*/1, /*cache_enabled=*/false};
  }

  xgrammar::GrammarCompiler compiler_, sample_;
};

}  // namespace

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Tokenizer& tokenizer) {
  return std::make_unique<XGrammarCompiler>(tokenizer);
}

bool Grammars::available() { return true; }

}  // namespace cortado

// Functions that the library calls if compiled with XGRAMMAR_LOG_CUSTOMIZE.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && cortado::warning.empty()) cortado::warning = cortado::one_line(message);
}

}  // namespace xgrammar
