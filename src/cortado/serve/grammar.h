// Answers that are held to a form: JSON, or JSON of a schema. What may come next is XGrammar's to say (xgrammar.cpp); a
// build without that library has no grammars (no_xgrammar.cpp). No torch.
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

// Where one answer stands in its grammar.
class GrammarState {
 public:
  virtual ~GrammarState() = default;

  // Sets the logits [vocabulary] of the tokens that must not come next to -inf. Failure: none may, for the vocabulary
  // has no token of what must come.
  virtual void restrict(std::span<float> logits) = 0;
  // The token that was chosen among those that may come. False: behind it nothing could come, and it is not taken.
  virtual bool accept(int32_t token) = 0;
  // Whether the answer is whole and nothing but a stop token may follow.
  virtual bool ended() = 0;
};

// Made of a schema once, for the vocabulary of a tokenizer; any number of answers are held to it, by any threads.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // `stops`: the tokenizer's stop tokens may end an answer. Without, it has ended as soon as it is whole.
  virtual std::unique_ptr<GrammarState> begin(bool stops) const = 0;
  virtual int64_t bytes() const = 0;
};

// Makes grammars for a tokenizer; one thread at a time.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Of a JSON schema; `closed` as held_schema's. InputError with the library's reason: it is none, nothing can fulfil it,
  // or the library would not hold to all of it.
  virtual std::shared_ptr<const Grammar> compile(const HeldSchema& schema, bool closed) = 0;
};

// Null: this build has no grammar library.
std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Tokenizer& tokenizer);

// InputError where a schema is too large to be compiled in the time of a request, or says what cannot be held to.
void check_schema(const Json& schema);

// The grammars that were asked for last, of all models. Called by the threads of requests: the one that needs a new
// grammar compiles it while others wait, and the engine writes on.
class Grammars {
 public:
  explicit Grammars(int64_t most_bytes = int64_t{256} << 20) : most_bytes_(most_bytes) {}

  // InputError as check_schema's and compile's; Failure: another schema has taken too long.
  std::shared_ptr<const Grammar> get(const std::shared_ptr<const Tokenizer>& tokenizer, const Json& schema,
                                     bool closed);
  static bool available();  // in this build

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
  std::list<Entry> entries_;  // the last used first
};

}  // namespace cortado
