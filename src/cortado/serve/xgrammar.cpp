// The only file that knows XGrammar.
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/serve/grammar.h"

namespace cortado {

namespace {

constexpr int kSpaces = 16;  // between two parts of an answer at most: small models would write them forever
constexpr size_t kLargestGrammar = 1 << 18;  // bytes of the grammar that a schema becomes

// A schema of a hundred bytes can take minutes, and nothing could stop it: the time that it takes with one of so many
// tokens tells how long it would be.
constexpr size_t kSampled = 64;
constexpr double kLongestCompilation = 20;  // seconds
constexpr double kLongestMask = 1;          // seconds of the engine's thread, in which all others wait

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// What the library warned of since it was cleared: what of a schema it does not hold to.
thread_local std::string warning;

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r'; }

// What the tokens stand for; empty: it may never come. That is so of control characters: in JSON's texts they are not
// allowed, but the library lets them into those that have a limit of length. It does not the ends of lines, which may
// stand between parts. Of `each` tokens only one.
std::vector<std::string> texts_of(const Tokenizer& tokenizer, size_t each) {
  std::vector<std::string> texts;
  for (int32_t token = 0; token < tokenizer.vocabulary(); ++token) {
    std::string text = tokenizer.is_special(token) ? "" : tokenizer.piece(token);
    const bool left_out = token % static_cast<int32_t>(each) != 0 || std::any_of(text.begin(), text.end(), is_control);
    texts.push_back(left_out ? "" : std::move(text));
  }
  return texts;
}

class XGrammarState : public GrammarState {
 public:
  XGrammarState(const xgrammar::CompiledGrammar& grammar, bool stops)
      : matcher_(grammar, std::nullopt, !stops),
        vocabulary_(grammar.GetTokenizerInfo().GetVocabSize()),
        stops_(stops ? grammar.GetTokenizerInfo().GetStopTokenIds() : std::vector<int>{}),
        mask_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocabulary_))) {}

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

  void accept(int32_t token) override {
    if (!matcher_.AcceptToken(token)) throw Failure(concat("[serve] token ", token, " breaks the answer's format"));
    known_ = false;
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
    known_ = true;
  }

  xgrammar::GrammarMatcher matcher_;
  int vocabulary_;
  std::vector<int> stops_;
  std::vector<int32_t> mask_;  // a bit a token
  bool known_ = false;         // mask_ is of the token that comes next
};

class XGrammarGrammar : public Grammar {
 public:
  explicit XGrammarGrammar(xgrammar::CompiledGrammar grammar) : grammar_(std::move(grammar)) {}
  std::unique_ptr<GrammarState> begin(bool stops) const override {
    const bool some = stops && !grammar_.GetTokenizerInfo().GetStopTokenIds().empty();
    return std::make_unique<XGrammarState>(grammar_, some);
  }
  int64_t bytes() const override { return static_cast<int64_t>(grammar_.MemorySizeBytes()); }

 private:
  xgrammar::CompiledGrammar grammar_;
};

class XGrammarCompiler : public GrammarCompiler {
 public:
  explicit XGrammarCompiler(const Tokenizer& tokenizer)
      : compiler_(compiler_of(tokenizer, 1)), sample_(compiler_of(tokenizer, kSampled)) {}

  std::shared_ptr<const Grammar> compile(const std::string& schema, bool closed) override {
    warning.clear();
    try {
      const auto grammar = xgrammar::Grammar::FromJSONSchema(schema, true, std::nullopt, std::nullopt, closed, kSpaces);
      fail_input_if(!warning.empty(), warning);
      const size_t size = grammar.ToString().size();
      fail_input_if(size > kLargestGrammar, "it becomes a grammar of ", size, " bytes, and at most ", kLargestGrammar,
                    " are allowed");
      const double before = thread_seconds();
      sample_.CompileGrammar(grammar);
      const double seconds = kSampled * (thread_seconds() - before);
      fail_input_if(seconds > kLongestCompilation, "it would take about ", std::lround(seconds),
                    " s to compile, and at most ", kLongestCompilation, " s are allowed");
      auto compiled = compiler_.CompileGrammar(grammar);
      fail_input_if(!XGrammarState(compiled, true).possible(),
                    "the vocabulary has no token that an answer could begin with");
      return std::make_shared<XGrammarGrammar>(std::move(compiled));
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

// What the library asks for where it is compiled with XGRAMMAR_LOG_CUSTOMIZE.
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
