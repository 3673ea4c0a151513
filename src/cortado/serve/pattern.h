// Regular expressions of schemas ("pattern") as automata over characters and as grammar rules for JSON texts. Without
// torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cortado {

// A set of Unicode characters as sorted ranges that do not touch.
class Characters {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // first and last
  Characters() = default;
  Characters(std::initializer_list<Range> ranges);
  static Characters all();

  void add(const Characters& other);
  Characters without(const Characters& other) const;
  bool empty() const { return ranges_.empty(); }
  bool contains(uint32_t character) const;
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// Limits on a text's length in characters.
struct Lengths {
  int64_t least = 0;
  std::optional<int64_t> most = {};
};

// A regular expression that must match from beginning to end. The syntax is JavaScript's (ECMA-262), without back
// references, lookahead and lookbehind, which no automaton can do, and without Unicode properties.
class Pattern {
 public:
  explicit Pattern(const std::string& expression);  // throws InputError

  bool matches(std::string_view text) const;
  // Returns the pattern restricted to texts of these lengths. If the automaton would become too large, only the shorter
  // of these texts remain. Throws InputError if no text remains.
  Pattern within(const Lengths& lengths) const;
  // Returns rules of XGrammar's EBNF for the texts in JSON form, with quotes. The first rule has the name `name`.
  std::string rules(const std::string& name) const;
  // Whether some matching text needs no escapes in JSON.
  bool has_plain_text() const;
  int64_t states() const { return static_cast<int64_t>(states_.size()); }

 private:
  struct State {
    std::map<int64_t, Characters> next;  // by target state
    bool end = false;
  };
  Pattern() = default;
  void make(const class Fragments& fragments, int64_t begin, int64_t end);
  void drop_dead_ends();
  void join_equal_states();
  Lengths lengths() const;

  std::vector<State> states_;  // the first one is the start
};

}  // namespace cortado
