// Answers constrained to JSON or to a JSON schema. XGrammar decides which tokens may come next (xgrammar.cpp); a build
// without that library has no grammars (no_xgrammar.cpp). Without torch.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "cortado/base/json.h"
#include "cortado/serve/schema.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// The position of one answer in its grammar.
class GrammarState {
 public:
  virtual ~GrammarState() = default;

  // Sets the logits [vocabulary] of all tokens that must not come next to -inf. Throws Failure if no token may come,
  // because the vocabulary has none that fits.
  virtual void restrict(std::span<float> logits) = 0;
  // Takes the chosen token. Returns false, without taking it, if nothing could follow it.
  virtual bool accept(int32_t token) = 0;
  // Whether the answer is complete and only a stop token may follow.
  virtual bool ended() = 0;
};

// A schema compiled for the vocabulary of a tokenizer. Any number of answers and threads may use it.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // Begins an answer. With `stops`, the tokenizer's stop tokens may end it; without, it ends as soon as it is complete.
  virtual std::unique_ptr<GrammarState> begin(bool stops) const = 0;
  virtual int64_t bytes() const = 0;
};

// Compiles grammars for one tokenizer. Not thread-safe.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Compiles a JSON schema; `closed` as in enforced_schema. Throws InputError with the library's reason if the schema is
  // invalid, cannot be fulfilled, or contains something that the library would not enforce.
  virtual std::shared_ptr<const Grammar> compile(const EnforcedSchema& schema, bool closed) = 0;
};

// Returns null if this build has no grammar library.
std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Tokenizer& tokenizer);

// Throws InputError if a schema takes too long to compile during a request, or contains something that cannot be
// enforced.
void check_schema(const Json& schema);

// A cache of the most recently used grammars of all models. Thread-safe: a thread that needs a new grammar compiles it
// while others wait for theirs; the engine continues.
class Grammars {
 public:
  explicit Grammars(int64_t most_bytes = int64_t{256} << 20) : most_bytes_(most_bytes) {}

  // Returns a grammar, compiled if needed. Throws InputError like check_schema and compile, and Failure if another
  // schema's compilation takes too long.
  std::shared_ptr<const Grammar> get(const std::shared_ptr<const Tokenizer>& tokenizer, const Json& schema,
                                     bool closed);
  static bool available();  // whether this build has the library

 private:
  struct Entry {
    const Tokenizer* tokenizer;
    std::string schema;
    bool closed;
    std::shared_ptr<const Grammar> grammar;
  };
  std::shared_ptr<const Grammar> find(const Tokenizer& tokenizer, const std::string& schema, bool closed);

  const int64_t most_bytes_;
  std::timed_mutex compiling_;
  std::map<std::shared_ptr<const Tokenizer>, std::unique_ptr<GrammarCompiler>> compilers_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace cortado
