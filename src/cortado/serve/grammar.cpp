#include "cortado/serve/grammar.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string_view>
#include <utility>

#include "cortado/base/error.h"

namespace cortado {

namespace {

using namespace std::chrono_literals;

// Limits on schemas, which bound the time of conversion to a grammar: the size, the nesting, counts of repetition, and
// regular expressions, above all nested repetitions. The compiler itself estimates the time to match the grammar with a
// vocabulary.
constexpr size_t kLargestSchema = 1 << 16;
constexpr int kDeepestSchema = 32;
constexpr int64_t kMostRepeated = 1024;
constexpr size_t kLongestPattern = 256;
constexpr double kMostNested = 64, kMostOfSeveral = 128;
constexpr size_t kMostCostly = 16;
constexpr auto kLongestWait = 10s;  // for the compilation of another request's schema

const std::set<std::string> kNamed = {"properties", "patternProperties", "$defs", "definitions"};
const std::set<std::string> kListed = {"anyOf", "oneOf", "allOf", "prefixItems"};
const std::set<std::string> kInner = {"items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties",
                                      "propertyNames"};
// Keywords that the library silently ignores.
const std::set<std::string> kNotHeld = {"not",
                                        "if",
                                        "then",
                                        "else",
                                        "contains",
                                        "minContains",
                                        "maxContains",
                                        "dependencies",
                                        "dependentRequired",
                                        "dependentSchemas"};
// The library reads the first of these keywords that a schema has and ignores all others, except those that do not
// restrict values.
const std::vector<std::string> kAlone = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
const std::set<std::string> kBeside = {"type",     "title",       "description", "default",      "examples",
                                       "$defs",    "definitions", "$schema",     "$id",          "$comment",
                                       "readOnly", "writeOnly",   "deprecated",  "discriminator"};
// Only lower limits: staying below an upper limit satisfies it.
const std::set<std::string> kRepeated = {"minLength", "minItems", "minProperties"};

// The size of a regular expression with every "{n,m}" expanded.
struct PatternSize {
  double parts = 0;
  bool nested = false;  // contains a repetition of more than one part
};

// Reads from `at` to the end, or to the parenthesis that closes the group.
PatternSize size_of(const std::string& pattern, size_t& at) {
  PatternSize whole;
  double last = 0;  // size of the previous part
  while (at < pattern.size() && pattern[at] != ')') {
    const char c = pattern[at++];
    if (c == '{') {
      const size_t end = std::min(pattern.find('}', at), pattern.size());
      double most = 1;
      for (size_t begin = at; begin < end; begin = std::min(pattern.find(',', begin), end) + 1) {
        most = std::max(most, std::atof(pattern.substr(begin, std::min(end - begin, size_t{9})).c_str()));
      }
      whole.parts += last * (most - 1);
      whole.nested = whole.nested || last > 1;
      at = std::min(end + 1, pattern.size());
      continue;
    }
    last = 1;
    if (c == '\\') ++at;
    if (c == '[') {
      while (at < pattern.size() && pattern[at] != ']') at += pattern[at] == '\\' ? 2 : 1;
      ++at;
    }
    if (c == '(') {
      const PatternSize inner = size_of(pattern, at);
      ++at;
      last = std::max(inner.parts, 1.0);
      whole.nested = whole.nested || inner.nested;
    }
    if (std::string_view("*+?|^$").find(c) == std::string_view::npos) whole.parts += last;
  }
  return whole;
}

void check_pattern(const std::string& pattern) {
  fail_input_if(pattern.size() > kLongestPattern, "\"pattern\" can have at most ", kLongestPattern, " bytes here");
  size_t at = 0;
  const PatternSize size = size_of(pattern, at);
  const bool several = std::count(pattern.begin(), pattern.end(), '{') > 1;
  const double most = size.nested ? kMostNested : several ? kMostOfSeveral : static_cast<double>(kMostRepeated);
  fail_input_if(size.parts > most, "\"pattern\" repeats too much: written out it can have at most ", most,
                " parts, got ", size.parts);
}

void check_keyword(const std::string& key, const Json& value) {
  fail_input_if(kNotHeld.contains(key) && value != Json(false), "\"", key, "\" is not supported");
  if (kRepeated.contains(key) && value.is_number()) {
    fail_input_if(!(value.get<double>() <= kMostRepeated), "\"", key, "\" can be at most ", kMostRepeated,
                  " here, got ", value.dump());
  }
  if (key == "pattern" && value.is_string()) check_pattern(value.get<std::string>());
}

// Counts different limits of length and patterns, because each takes seconds to compile.
void count_costly(const Json& schema, std::set<std::string>& costly) {
  if (schema.contains("minLength") || schema.contains("maxLength")) {
    costly.insert(concat(schema.value("minLength", Json()), " ", schema.value("maxLength", Json())));
  }
  if (schema.contains("pattern")) costly.insert(schema.at("pattern").dump());
  fail_input_if(costly.size() > kMostCostly, "it has more than ", kMostCostly,
                " different limits of length and patterns");
}

void check_part(const Json& schema, int depth, std::set<std::string>& costly) {
  fail_input_if(depth > kDeepestSchema, "schemas lie more than ", kDeepestSchema, " deep in one another");
  if (!schema.is_object()) return;
  count_costly(schema, costly);
  for (const auto& alone : kAlone) {
    if (!schema.contains(alone)) continue;
    for (const auto& [key, value] : schema.items()) {
      fail_input_if(key != alone && !kBeside.contains(key), "\"", key, "\" beside \"", alone, "\" is not supported");
    }
    break;
  }
  for (const auto& [key, value] : schema.items()) {
    check_keyword(key, value);
    if (key == "patternProperties" && value.is_object()) {
      for (const auto& [pattern, part] : value.items()) check_pattern(pattern);
    }
    if (kInner.contains(key)) check_part(value, depth + 1, costly);
    const bool named = kNamed.contains(key) && value.is_object(), listed = kListed.contains(key) && value.is_array();
    if (!named && !listed) continue;
    for (const Json& part : value) check_part(part, depth + 1, costly);
  }
}

}  // namespace

void check_schema(const Json& schema) {
  const size_t size = schema.dump().size();
  fail_input_if(size > kLargestSchema, "it has ", size, " bytes, and at most ", kLargestSchema, " are taken");
  std::set<std::string> costly;
  check_part(schema, 0, costly);
}

std::shared_ptr<const Grammar> Grammars::find(const Tokenizer& tokenizer, const std::string& schema, bool closed) {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->tokenizer != &tokenizer || entry->closed != closed || entry->schema != schema) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->grammar;
  }
  return nullptr;
}

std::shared_ptr<const Grammar> Grammars::get(const std::shared_ptr<const Tokenizer>& tokenizer, const Json& schema,
                                             bool closed) {
  check_schema(schema);
  const std::string text = schema.dump();
  if (auto found = find(*tokenizer, text, closed)) return found;
  // One compilation at a time, so that it takes at most one core from the engine.
  const std::unique_lock turn(compiling_, kLongestWait);
  if (!turn.owns_lock()) throw Failure("[serve] the formats of other requests are still being compiled");
  if (auto found = find(*tokenizer, text, closed)) return found;
  auto& compiler = compilers_[tokenizer];
  if (!compiler) compiler = make_grammar_compiler(*tokenizer);
  fail_input_if(!compiler, "this build has no grammar library (XGrammar)");
  auto grammar = compiler->compile(enforced_schema(schema, closed), closed);
  const std::lock_guard lock(mutex_);
  entries_.push_front({.tokenizer = tokenizer.get(), .schema = text, .closed = closed, .grammar = grammar});
  int64_t bytes = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    bytes += entry->grammar->bytes() + static_cast<int64_t>(entry->schema.size());
    if (bytes <= most_bytes_ || entry == entries_.begin()) continue;
    entries_.erase(entry, entries_.end());
    break;
  }
  return grammar;
}

}  // namespace cortado
