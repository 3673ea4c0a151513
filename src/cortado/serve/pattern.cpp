#include "cortado/serve/pattern.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"
#include "cortado/serve/pattern_parts.h"

namespace cortado {

namespace {

constexpr uint32_t kLast = 0x10FFFF;
constexpr size_t kMostStates = 2048;

using States = std::vector<int64_t>;  // states of Fragments, sorted

// Returns the states that can be reached without a character.
States closure(const Fragments& fragments, const States& from, bool begin, bool end) {
  std::set<int64_t> found(from.begin(), from.end());
  std::vector<int64_t> open = from;
  while (!open.empty()) {
    const int64_t state = open.back();
    open.pop_back();
    for (const auto& [kind, characters, to] : fragments.edges(state)) {
      const bool passes =
          kind == Fragments::kFree || (kind == Fragments::kBegin && begin) || (kind == Fragments::kEnd && end);
      if (passes && found.insert(to).second) open.push_back(to);
    }
  }
  return {found.begin(), found.end()};
}

// Returns the transitions for all characters.
std::map<States, Characters> steps_from(const Fragments& fragments, const States& states) {
  std::set<uint32_t> borders;
  for (const int64_t state : states) {
    for (const auto& edge : fragments.edges(state)) {
      for (const auto& [first, last] : edge.characters.ranges()) borders.insert({first, last + 1});
    }
  }
  std::map<States, Characters> steps;
  for (auto border = borders.begin(); border != borders.end() && std::next(border) != borders.end(); ++border) {
    States reached;
    for (const int64_t state : states) {
      for (const auto& edge : fragments.edges(state)) {
        if (edge.characters.contains(*border)) reached.push_back(edge.to);
      }
    }
    if (!reached.empty()) steps[closure(fragments, reached, false, false)].add({{*border, *std::next(border) - 1}});
  }
  return steps;
}

std::string escaped_in_class(uint32_t character) {
  const bool plain = character < 0x80 && std::isalnum(static_cast<int>(character)) != 0;
  if (plain) return std::string(1, static_cast<char>(character));
  char text[16];
  std::snprintf(text, sizeof text, character > 0xFFFF ? "\\U%08X" : "\\u%04X", character);
  return text;
}

std::string class_of(const Characters& characters) {
  std::string text = "[";
  for (const auto& [first, last] : characters.ranges()) {
    text += escaped_in_class(first);
    if (last > first) text += "-" + escaped_in_class(last);
  }
  return text + "]";
}

// Characters that JSON texts contain unescaped.
const Characters& plain() {
  static const Characters kPlain = Characters::all().without({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0xD800, 0xDFFF}});
  return kPlain;
}

// Returns the shortest JSON forms of these characters. Of the control characters only line ends and tabs are used,
// unless there is no other choice.
std::vector<std::string> written(const Characters& characters) {
  static const std::vector<std::pair<uint32_t, const char*>> kShort = {
      {'"', R"("\\\"")"}, {'\\', R"("\\\\")"}, {'\n', R"("\\n")"}, {'\r', R"("\\r")"}, {'\t', R"("\\t")"}};
  std::vector<std::string> ways;
  const Characters as_they_are = characters.without(Characters::all().without(plain()));
  if (!as_they_are.empty()) ways.push_back(class_of(as_they_are));
  for (const auto& [character, text] : kShort) {
    if (characters.contains(character)) ways.emplace_back(text);
  }
  for (uint32_t control = 0; ways.empty() && control < 0x20; ++control) {
    if (!characters.contains(control)) continue;
    char text[16];
    std::snprintf(text, sizeof text, R"("\\u%04x")", control);
    ways.emplace_back(text);
  }
  return ways;
}

}  // namespace

Characters::Characters(std::initializer_list<Range> ranges) {
  for (const Range& range : ranges) {
    Characters one;
    one.ranges_ = {range};
    add(one);
  }
}

Characters Characters::all() { return {{0, kLast}}; }

void Characters::add(const Characters& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<Range> joined;
  for (const auto& [first, last] : ranges_) {
    if (!joined.empty() && first <= joined.back().second + 1) {
      joined.back().second = std::max(joined.back().second, last);
    } else {
      joined.emplace_back(first, last);
    }
  }
  ranges_ = std::move(joined);
}

Characters Characters::without(const Characters& other) const {
  Characters left;
  for (auto [first, last] : ranges_) {
    for (const auto& [from, to] : other.ranges_) {
      if (to < first || from > last) continue;
      if (from > first) left.ranges_.emplace_back(first, from - 1);
      first = to + 1;
    }
    if (first <= last) left.ranges_.emplace_back(first, last);
  }
  return left;
}

bool Characters::contains(uint32_t character) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const Range& range) { return range.first <= character && character <= range.second; });
}

Pattern::Pattern(const std::string& expression) {
  const Fragments fragments(expression);
  std::map<States, int64_t> numbers;
  std::vector<States> open;
  const auto number_of = [&](const States& states, bool begin) {
    const auto [found, is_new] = numbers.emplace(states, static_cast<int64_t>(states_.size()));
    if (is_new) {
      fail_input_if(states_.size() >= kMostStates, "\"pattern\" is too large: ", expression);
      const States ends = closure(fragments, states, begin, true);
      states_.push_back({.next = {}, .end = std::binary_search(ends.begin(), ends.end(), fragments.end())});
      open.push_back(states);
    }
    return found->second;
  };
  const States first = closure(fragments, {fragments.begin()}, true, false);
  number_of(first, true);
  // Only the first state is at the beginning of the text: later states must not pass "^".
  numbers.clear();
  for (size_t at = 0; at < open.size(); ++at) {
    const auto steps = steps_from(fragments, States(open[at]));
    for (const auto& [states, characters] : steps) {
      const int64_t to = number_of(states, false);
      states_[at].next[to].add(characters);
    }
  }
  drop_dead_ends();
  join_equal_states();
}

// Removes states that are unreachable or from which no end is reachable.
void Pattern::drop_dead_ends() {
  std::vector<std::vector<int64_t>> before(states_.size()), behind(states_.size());
  std::vector<int64_t> ends;
  for (size_t state = 0; state < states_.size(); ++state) {
    for (const auto& [to, characters] : states_[state].next) {
      before[static_cast<size_t>(to)].push_back(static_cast<int64_t>(state));
      behind[state].push_back(to);
    }
    if (states_[state].end) ends.push_back(static_cast<int64_t>(state));
  }
  const auto reached = [](std::vector<int64_t> open, const std::vector<std::vector<int64_t>>& steps) {
    std::vector<bool> there(steps.size());
    for (const int64_t state : open) there[static_cast<size_t>(state)] = true;
    while (!open.empty()) {
      const auto state = static_cast<size_t>(open.back());
      open.pop_back();
      for (const int64_t next : steps[state]) {
        if (!there[static_cast<size_t>(next)]) open.push_back(next);
        there[static_cast<size_t>(next)] = true;
      }
    }
    return there;
  };
  const auto alive = reached(ends, before), found = reached({0}, behind);
  fail_input_if(!alive[0], "no text matches \"pattern\" with these lengths");
  std::vector<State> kept;
  std::vector<int64_t> numbers(states_.size(), -1);
  for (size_t state = 0; state < states_.size(); ++state) {
    if (!alive[state] || !found[state]) continue;
    numbers[state] = static_cast<int64_t>(kept.size());
    kept.push_back(std::move(states_[state]));
  }
  for (State& state : kept) {
    std::map<int64_t, Characters> next;
    for (auto& [to, characters] : state.next) {
      if (numbers[static_cast<size_t>(to)] >= 0) next[numbers[static_cast<size_t>(to)]] = std::move(characters);
    }
    state.next = std::move(next);
  }
  states_ = std::move(kept);
}

// Merges equivalent states. Only for small automata: the number of rounds grows with the longest path without a cycle.
void Pattern::join_equal_states() {
  if (states_.size() > 256) return;
  using Signature = std::pair<int64_t, std::map<int64_t, std::vector<Characters::Range>>>;
  std::vector<int64_t> kinds;
  for (const State& state : states_) kinds.push_back(state.end ? 1 : 0);
  const auto next_of = [&](const State& state) {
    std::map<int64_t, Characters> next;
    for (const auto& [to, characters] : state.next) next[kinds[static_cast<size_t>(to)]].add(characters);
    return next;
  };
  for (size_t count = 0; true;) {
    std::map<Signature, int64_t> known;
    std::vector<int64_t> finer;
    for (size_t state = 0; state < states_.size(); ++state) {
      Signature signature{kinds[state], {}};
      for (const auto& [kind, characters] : next_of(states_[state])) signature.second[kind] = characters.ranges();
      finer.push_back(known.emplace(std::move(signature), static_cast<int64_t>(known.size())).first->second);
    }
    kinds = std::move(finer);
    if (known.size() == count) break;
    count = known.size();
  }
  std::vector<State> joined;  // a class has the number of its first state, so the first state stays the first
  for (size_t state = 0; state < states_.size(); ++state) {
    if (kinds[state] < static_cast<int64_t>(joined.size())) continue;
    joined.push_back({.next = next_of(states_[state]), .end = states_[state].end});
  }
  states_ = std::move(joined);
}

bool Pattern::matches(std::string_view text) const {
  size_t state = 0;
  while (!text.empty()) {
    const Utf8Char character = utf8_char(text);
    if (character.length == 0) return false;
    const auto& next = states_[state].next;
    const auto found =
        std::find_if(next.begin(), next.end(), [&](const auto& step) { return step.second.contains(character.code); });
    if (found == next.end()) return false;
    state = static_cast<size_t>(found->first);
    text.remove_prefix(static_cast<size_t>(character.length));
  }
  return states_[state].end;
}

bool Pattern::has_plain_text() const {
  std::vector<bool> reached(states_.size());
  std::vector<size_t> open = {0};
  reached[0] = true;
  while (!open.empty()) {
    const State& state = states_[open.back()];
    open.pop_back();
    if (state.end) return true;
    for (const auto& [to, characters] : state.next) {
      const auto next = static_cast<size_t>(to);
      const bool passes = !characters.without(Characters::all().without(plain())).empty();
      if (!passes || reached[next]) continue;
      reached[next] = true;
      open.push_back(next);
    }
  }
  return false;
}

// Returns the lengths of the matching texts. Breadth-first: whatever continues after as many steps as there are states
// is in a cycle.
Lengths Pattern::lengths() const {
  Lengths found{.least = -1};
  std::set<int64_t> at = {0};
  for (int64_t length = 0; length <= states(); ++length) {
    std::set<int64_t> next;
    bool ends = false;
    for (const int64_t state : at) {
      ends = ends || states_[static_cast<size_t>(state)].end;
      for (const auto& [to, characters] : states_[static_cast<size_t>(state)].next) next.insert(to);
    }
    if (ends && found.least < 0) found.least = length;
    if (ends) found.most = length;
    if (next.empty()) return found;
    at = std::move(next);
  }
  found.most.reset();
  return found;
}

Pattern Pattern::within(const Lengths& lengths) const {
  const Lengths own = this->lengths();
  const bool shorter = !lengths.most || (own.most && *own.most <= *lengths.most);
  if (shorter && own.least >= lengths.least) return *this;
  // The product automaton has one state per state and count. Without an upper limit, all counts from the least on are
  // one.
  int64_t counts = (lengths.most ? *lengths.most : lengths.least) + 1;
  const int64_t room = static_cast<int64_t>(kMostStates) / states();
  if (lengths.most) counts = std::min(counts, std::max(room, std::max(lengths.least, own.least) + 1));
  fail_input_if(counts * states() > 4 * static_cast<int64_t>(kMostStates),
                "\"pattern\" is too large beside such lengths");
  Pattern product;
  product.states_.resize(static_cast<size_t>(counts * states()));
  for (int64_t state = 0; state < states(); ++state) {
    for (int64_t count = 0; count < counts; ++count) {
      State& it = product.states_[static_cast<size_t>(state * counts + count)];
      it.end = states_[static_cast<size_t>(state)].end && count >= lengths.least;
      const int64_t next = lengths.most ? count + 1 : std::min(count + 1, counts - 1);
      if (next >= counts) continue;
      for (const auto& [to, characters] : states_[static_cast<size_t>(state)].next) {
        it.next[to * counts + next] = characters;
      }
    }
  }
  product.drop_dead_ends();
  return product;
}

std::string Pattern::rules(const std::string& name) const {
  std::string text = name + " ::= \"\\\"\" " + name + "_0\n";
  for (size_t state = 0; state < states_.size(); ++state) {
    text += concat(name, "_", state, " ::=");
    const char* between = " ";
    for (const auto& [to, characters] : states_[state].next) {
      for (const auto& way : written(characters)) {
        text += concat(between, "(", way, " ", name, "_", to, ")");
        between = " | ";
      }
    }
    if (states_[state].end) text += concat(between, "\"\\\"\"");
    text += "\n";
  }
  return text;
}

}  // namespace cortado
