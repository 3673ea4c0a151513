// The regular expressions of schemas ("pattern") as automata over characters, and as rules of a grammar of JSON texts.
// No torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cortado {

// Ranges of Unicode's characters, in order, none of which touch.
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

// How long a text may be, in characters.
struct Lengths {
  int64_t least = 0;
  std::optional<int64_t> most = {};
};

// What matches an expression from its beginning to its end. The expression is JavaScript's (ECMA-262), without what no
// automaton can do (back references, what is ahead and behind) and without Unicode's properties.
class Pattern {
 public:
  explicit Pattern(const std::string& expression);  // InputError

  bool matches(std::string_view text) const;
  // Those of its texts that are so long. Where that would be an automaton beyond all measure, only the shorter ones of
  // them are left. InputError: there is none.
  Pattern within(const Lengths& lengths) const;
  // Rules of XGrammar's EBNF, the first of which has this name: the texts as JSON has them, in quotes.
  std::string rules(const std::string& name) const;
  // Whether one of its texts is written in JSON as it is.
  bool has_plain_text() const;
  int64_t states() const { return static_cast<int64_t>(states_.size()); }

 private:
  struct State {
    std::map<int64_t, Characters> next;  // by the state that they lead to
    bool end = false;
  };
  Pattern() = default;
  void make(const class Fragments& fragments, int64_t begin, int64_t end);
  void drop_dead_ends();
  void join_equal_states();
  Lengths lengths() const;

  std::vector<State> states_;  // the first one is where texts begin
};

}  // namespace cortado
